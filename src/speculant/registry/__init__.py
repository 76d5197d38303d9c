"""The tables of methods and of acceptance rules, and what is built from their rows."""

from speculant.registry.method import Method
from speculant.registry.methods import (
    METHODS,
    build_verifier,
    check_verifier,
    default_method,
    drafts_from_text,
    find_memory_kind,
    find_method,
    learns_from_text,
    methods_reading,
)
from speculant.registry.own import is_own, method_of
from speculant.registry.rules import VERIFIERS, Rule, find_rule

__all__ = [
    "METHODS",
    "VERIFIERS",
    "Method",
    "Rule",
    "build_verifier",
    "check_verifier",
    "default_method",
    "drafts_from_text",
    "find_memory_kind",
    "find_method",
    "find_rule",
    "is_own",
    "learns_from_text",
    "method_of",
    "methods_reading",
]
