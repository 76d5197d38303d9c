"""The tables of methods and acceptance rules, and the functions that build drafters and verifiers from them."""

from speculant.registry.context import BuildContext
from speculant.registry.method import Method
from speculant.registry.methods import (
    METHODS,
    build_drafter,
    build_verifier,
    check_verifier,
    default_method,
    drafts_from_text,
    find_method,
    learns_from_text,
)
from speculant.registry.own import is_own, method_of
from speculant.registry.rules import VERIFIERS, Rule, find_rule

__all__ = [
    "METHODS",
    "VERIFIERS",
    "BuildContext",
    "Method",
    "Rule",
    "build_drafter",
    "build_verifier",
    "check_verifier",
    "default_method",
    "drafts_from_text",
    "find_method",
    "find_rule",
    "is_own",
    "learns_from_text",
    "method_of",
]
