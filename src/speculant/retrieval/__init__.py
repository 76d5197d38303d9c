"""Iterative retrieval-augmented generation with speculative retrieval (RaLMSpec, arXiv 2401.14021)."""

from speculant.retrieval.generation import RetrievalGenerator, RetrievalResult
from speculant.retrieval.retriever import Retriever

__all__ = ["RetrievalGenerator", "RetrievalResult", "Retriever"]
