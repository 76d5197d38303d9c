"""Definition of Gemma 4 assistants as a kind of heads: checkpoints and methods."""

from __future__ import annotations

from speculant.drafters.heads.kind import HeadKind, HeadMethod, Layout

ASSISTANT = HeadKind(
    name="assistant",
    layouts=(
        Layout(
            name="Gemma 4 assistant",
            method="assistant",
            matches="speculant.drafters.heads.assistant.checkpoint:matches",
            load="speculant.drafters.heads.assistant.checkpoint:load",
        ),
    ),
    methods=(
        HeadMethod(
            name="assistant",
            family="self-drafting, feature head",
            summary="Gemma 4's small layers over the target's own keys and values draft the most probable paths",
            drafter="speculant.drafters.heads.drafter:HeadDrafter",
            settings="speculant.drafters.heads.drafter:HeadSettings",
            source="Google 2026, vllm-project/vllm#41745",
            requires="the assistant published for the Gemma 4 model",
        ),
    ),
    decoder_only="it reads the keys of Gemma 4's layers",
)
