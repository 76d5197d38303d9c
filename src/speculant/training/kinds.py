"""The table of what can be trained: kinds of heads, and draft models."""

from __future__ import annotations

from speculant.core.errors import UsageError
from speculant.training.kind import Kind

_BUILDERS = "speculant.training.builders."
_RECIPES = "speculant.training.recipes."
_CHECKPOINTS = "speculant.drafters.heads.checkpoints."

KINDS = (
    Kind(
        name="eagle",
        build=_BUILDERS + "eagle:new_eagle",
        recipe=_RECIPES + "eagle:EagleRecipe",
        save=_CHECKPOINTS + "eagle:save",
        depth=1,
        loss="0.1kl",
        feature_weight=1.0,
        source="Li et al. 2024, arXiv 2401.15077; HASS with several depths: Zhang et al. 2025, arXiv 2408.15766",
    ),
    Kind(
        name="eagle3",
        build=_BUILDERS + "eagle3:new_eagle3",
        options={"vocabulary": 0, "own_output": True, "inner": 0},
        recipe=_RECIPES + "eagle3:Eagle3Recipe",
        save=_CHECKPOINTS + "eagle3:save",
        depth=4,
        source="Li et al. 2025, arXiv 2503.01840",
    ),
    Kind(
        name="mtp",
        build=_BUILDERS + "mtp:new_mtp",
        recipe=_RECIPES + "mtp:MtpRecipe",
        save=_CHECKPOINTS + "mtp:save",
        depth=4,
        feature_weight=0.1,
        source="DeepSeek-AI 2024, arXiv 2412.19437; several depths: FastMTP, arXiv 2509.18362",
    ),
    Kind(
        name="p-eagle",
        build=_BUILDERS + "eagle3:new_p_eagle",
        options={"layers": 2, "vocabulary": 0, "own_output": True},
        recipe=_RECIPES + "p_eagle:PEagleRecipe",
        save=_CHECKPOINTS + "eagle3:save",
        depth=4,
        parts="depth",
        source="P-EAGLE, of vLLM's speculators",
    ),
    Kind(
        name="medusa",
        build=_BUILDERS + "blocks:new_medusa",
        options={"blocks": 1, "own": False},
        recipe=_RECIPES + "medusa:MedusaRecipe",
        save=_CHECKPOINTS + "medusa:save",
        depth=4,
        parts="heads",
        searches_tree=True,
        source="Cai et al. 2024, arXiv 2401.10774",
    ),
    Kind(
        name="hydra",
        build=_BUILDERS + "blocks:new_hydra",
        options={"blocks": 1},
        recipe=_RECIPES + "hydra:HydraRecipe",
        save=_CHECKPOINTS + "hydra:save",
        depth=4,
        parts="heads",
        searches_tree=True,
        source="Ankner et al. 2024, arXiv 2402.05109",
    ),
    Kind(
        name="mlp",
        build=_BUILDERS + "blocks:new_mlp",
        options={"inner": 0, "tied": False},
        recipe=_RECIPES + "mlp:MLPRecipe",
        save=_CHECKPOINTS + "mlp:save",
        depth=4,
        parts="steps",
        lr=2e-3,
        source="Wertheimer et al. 2024, arXiv 2404.19124",
    ),
    Kind(
        name="blockwise",
        build=_BUILDERS + "blocks:new_blockwise",
        options={"inner": 0},
        recipe=_RECIPES + "blockwise:BlockwiseRecipe",
        save=_CHECKPOINTS + "blockwise:save",
        depth=4,
        parts="heads",
        source="Stern et al. 2018, arXiv 1811.03115",
    ),
    Kind(
        name="hydra++",
        build=_BUILDERS + "blocks:new_hydra_plus",
        recipe=_RECIPES + "hydra:HydraRecipe",
        save=_CHECKPOINTS + "hydra:save",
        depth=4,
        parts="heads",
        searches_tree=True,
        source="Ankner et al. 2024, arXiv 2402.05109, section 4",
    ),
    Kind(
        name="dflash",
        build=_BUILDERS + "dflash:new_dflash",
        options={
            "layers": 1,
            "size": 5,
            "markov": 0,
            "confidence": False,
            "domino": 0,
            "selector": 0,
            "causal": False,
        },
        recipe=_RECIPES + "dflash:DFlashRecipe",
        save=_CHECKPOINTS + "dflash:save",
        depth=4,
        source="Chen et al. 2026, arXiv 2602.06036",
    ),
    Kind(
        name="glide",
        build=_BUILDERS + "text_heads:new_glide",
        recipe=_RECIPES + "glide:GlideRecipe",
        save=_CHECKPOINTS + "glide:save",
        depth=5,
        loss="ce",
        source="Du et al. 2024, arXiv 2402.02082",
    ),
    Kind(
        name="pass",
        build=_BUILDERS + "text_heads:new_lookahead",
        options={"count": 4},
        recipe=_RECIPES + "lookahead:LookaheadRecipe",
        save=_CHECKPOINTS + "lookahead:save",
        depth=5,
        loss="ce",
        lr=1e-2,
        source="Monea et al. 2023, arXiv 2311.13581",
    ),
    Kind(
        name="specdec",
        build=_BUILDERS + "text_heads:new_specdec",
        options={"encoder": 4, "decoder": 1},
        recipe=_RECIPES + "specdec:SpecDecRecipe",
        save=_CHECKPOINTS + "specdec:save",
        depth=8,
        parts="block",
        loss="ce",
        source="Xia et al. 2023, arXiv 2203.16487",
    ),
)

DRAFT_MODEL = Kind(
    name="draft-model",
    build=_BUILDERS + "draft_model:new_draft_model",
    options={"layers": 0, "hidden": 0, "heads": 0, "kv_heads": 0, "head_dim": 0, "inner": 0},
    recipe=_RECIPES + "draft_model:DraftModelRecipe",
    save=_BUILDERS + "draft_model:save_draft_model",
    load=_BUILDERS + "draft_model:load_draft_model",
    features="speculant.training.student_features:student_features",
    draft_model=True,
    depth=1,
    anchors=256,
    source="Zhou et al. 2024, arXiv 2310.08461; --before: Miao et al. 2024, arXiv 2305.09781, section 3.1",
)


def find_kind(name: str) -> Kind:
    """Return the kind of that name.

    Raises:
        UsageError: there is none.
    """
    for kind in (*KINDS, DRAFT_MODEL):
        if kind.name == name:
            return kind
    names = ", ".join(each.name for each in (*KINDS, DRAFT_MODEL))
    raise UsageError(f"there is no kind of head {name!r} to train; there are {names}.")
