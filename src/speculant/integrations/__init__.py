"""Drafts for engines that call a drafter: the common part, and one file per engine. See docs/vllm.md."""
