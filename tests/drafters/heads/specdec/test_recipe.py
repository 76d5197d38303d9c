"""Glancing in SpecDec's training: which masks are shown, and which are trained."""

from __future__ import annotations

import torch

from block_heads import target_of, train_batch
from models import VOCABULARY
from speculant.drafters.heads.specdec.recipe import SpecDecRecipe, draw_glanced, read_texts
from text_heads import specdec_head


def test_share_of_the_wrong_masks() -> None:
    """Guards the number of masks shown in a block: the share of those filled wrongly, rounded down."""
    torch.manual_seed(1)
    wrong = torch.arange(8) < torch.arange(9)[:, None].repeat(50, 1)  # 0 to 8 of 8 masks
    assert draw_glanced(wrong, 0.5).sum(1).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4] * 50
    assert draw_glanced(wrong, 0.3).sum(1).tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2] * 50


def test_places_are_drawn_anywhere() -> None:
    """Guards that masks filled correctly are shown as often as the others."""
    torch.manual_seed(2)
    wrong = torch.tensor([True, True, False, False]).repeat(4000, 1)
    shares = draw_glanced(wrong, 0.5).float().mean(0)
    torch.testing.assert_close(shares, torch.full((4,), 0.25), atol=0.03, rtol=0)


def test_each_depth_is_trained() -> None:
    """Guards few anchors: a depth that is shown everywhere would have no loss."""
    torch.manual_seed(3)
    assert not draw_glanced(torch.ones(1, 4).bool(), 0.9).any()


def test_tokens_that_are_shown_are_not_trained() -> None:
    """Guards the second pass: it reads the text's tokens at the masks shown, and its outputs are those of the rest."""
    model, parts = target_of()
    recipe = SpecDecRecipe(specdec_head(), depth=3)
    batch = train_batch(model, parts, (), recipe.depth)
    texts, rows = batch.anchors.unbind(1)
    tokens = batch.ids[texts[:, None], rows[:, None] + torch.arange(2, 5)]
    fill = read_texts(recipe.head, batch)
    masks = torch.full((len(texts), 4), VOCABULARY)
    torch.manual_seed(4)
    outputs = list(recipe.run(batch, parts))
    torch.manual_seed(4)
    with torch.no_grad():
        glanced = draw_glanced(fill(masks)[:, :3].argmax(-1) != tokens, 0.5)
        shown = masks.clone()
        shown[:, :3][glanced] = tokens[glanced]
        logits = fill(shown)
        plain = list(recipe.run(batch, parts))
    assert glanced.any()
    for depth, output in enumerate(outputs):
        trained = ~glanced[:, depth]
        torch.testing.assert_close(output.logits, logits[trained, depth])
        assert output.tokens.tolist() == tokens[trained, depth].tolist()
        assert len(output.target) == len(output.logits)
        torch.testing.assert_close(plain[depth].logits, fill(masks)[:, depth])  # without gradients nothing is shown


def test_share_falls() -> None:
    """Guards the schedule: half of the wrong masks at first, 0.3 at the end."""
    recipe, shares = SpecDecRecipe(specdec_head()), []
    for done in (0.0, 0.5, 1.0, 1.5):
        recipe.begin(done)
        shares.append(round(recipe.share, 6))
    assert shares == [0.5, 0.4, 0.3, 0.3]
