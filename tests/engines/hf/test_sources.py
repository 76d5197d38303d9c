"""Classes that read more than text, tiny and random, draft behind a source and write the text of `generate`."""

from __future__ import annotations

import pytest

from architecture_matrix.compare_sources import examine_with_source
from speculant.engines.hf.prompt import slices_by_length

pytestmark = [
    pytest.mark.skipif(not slices_by_length(), reason="this release prepares such passes otherwise"),
    pytest.mark.filterwarnings("ignore"),  # transformers warns of the classes' own options
]
SEQ2SEQ, SPEECH, IMAGE = "AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq", "AutoModelForImageTextToText"


@pytest.mark.parametrize(
    ("group", "name"),
    [
        pytest.param(SEQ2SEQ, "t5gemma", id="windows-of-a-decoder", marks=pytest.mark.slow),  # as T5Gemma 2 has them
        pytest.param(SEQ2SEQ, "pegasus_x", id="positions-by-embeddings"),
        pytest.param(SEQ2SEQ, "encoder-decoder", id="two-models-joined"),
        pytest.param(SPEECH, "moonshine_streaming", id="encoder-states-written-to"),
        pytest.param(IMAGE, "pix2struct", id="a-decoder's-own-bias"),
        pytest.param(IMAGE, "t5gemma2", id="windows-beside-the-source"),
        pytest.param(IMAGE, "git", id="images-without-placeholders"),
        pytest.param(IMAGE, "mllama", id="cross-attention-of-some-layers"),
        pytest.param(IMAGE, "idefics", id="no-text-without-an-image"),
        pytest.param(IMAGE, "blip", id="a-part-writes-beside-the-image"),
        # `test_media` compares texts of BLIP-2, which writes in the same way.
        pytest.param(IMAGE, "instructblip", id="a-part-writes-behind-embeddings", marks=pytest.mark.slow),
        pytest.param(IMAGE, "ernie4_5_vl_moe", id="axes-in-another-order"),
    ],
)
def test_trees_write_the_text_of_generate(group: str, name: str) -> None:
    """Guards what single families do with windows, positions and the encoder's states."""
    found = examine_with_source(group, name, ("eager",))
    assert (found.verdict, found.mismatches) == ("trees", [])
    assert found.accepted > 20
