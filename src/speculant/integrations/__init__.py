"""Drafts for engines that call a drafter: what all of them share, and one file per engine. See docs/vllm.md."""
