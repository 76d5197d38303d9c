"""The front door: prompts, options, streams, stops, caches, notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TextStreamer
from transformers.generation.streamers import BaseStreamer

from models import tiny_model
from speculant import Source, Speculator
from speculant.core.errors import (
    FileError,
    ForeignMemoryError,
    PromptError,
    TokenizerError,
    UnknownMethodError,
    UnsupportedError,
    UsageError,
)
from speculant.drafters.copying.lookup import LookupDrafter

IDS = [5, 9, 14, 3, 8]


@pytest.fixture(scope="module")
def stories() -> Speculator:
    return Speculator.from_pretrained()


@pytest.fixture
def tiny() -> Speculator:
    return Speculator.from_transformers(tiny_model("llama"))


def test_a_text_prompt_gives_the_text_of_generate(stories: Speculator) -> None:
    """Guards the whole way from text to text on the bundled model."""
    inputs = stories.tokenizer("Once upon a time", return_tensors="pt")
    plain = stories.model.generate(inputs.input_ids, max_new_tokens=60, do_sample=False)[0, inputs.input_ids.shape[1] :]
    result = stories.generate("Once upon a time", max_new_tokens=60, temperature=0)
    assert result.ids == plain.tolist()
    assert result.text.strip() == stories.tokenizer.decode(plain, skip_special_tokens=True).strip()
    assert len(result.sources) == len(result.ids) == result.stats.tokens


def test_streamed_pieces_join_to_the_text(stories: Speculator) -> None:
    """Guards streaming: nothing lost or doubled, and the pieces say where each token came from."""
    stream = stories.stream("The little dog", max_new_tokens=50, temperature=0)
    pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == stream.result.text
    assert [token for piece in pieces for token in piece.tokens] == stream.result.ids
    assert pieces[0].sources == [Source.PLAIN]
    assert all(piece.text == "".join(piece.texts) for piece in pieces)


def test_an_abandoned_stream_keeps_what_it_said(stories: Speculator) -> None:
    """Guards interruption: the result is there at any time."""
    stream = stories.stream("The little dog", max_new_tokens=50, temperature=0)
    first = next(iter(stream))
    assert stream.result.ids == first.tokens
    assert stream.result.finish_reason == "unfinished"


def test_stop_strings_end_the_text_where_generate_ends_it(stories: Speculator) -> None:
    """Guards stop strings, by `generate`, by `stream` and through the drop-in."""
    inputs = stories.tokenizer("One day, a girl", return_tensors="pt")
    ids, length = inputs.input_ids, inputs.input_ids.shape[1]
    options: dict[str, Any] = {"max_new_tokens": 80, "do_sample": False}
    plain = stories.model.generate(ids, **options, stop_strings=["."], tokenizer=stories.tokenizer)
    result = stories.generate("One day, a girl", max_new_tokens=80, temperature=0, stop=".")
    assert result.ids == plain[0, length:].tolist()
    assert result.finish_reason == "stop"
    assert "." in result.text
    drop_in = stories.model.generate(ids, **options, custom_generate=stories.bind(stop=["."]))
    assert torch.equal(drop_in, plain)


def test_streamers_get_prompt_tokens_and_end(tiny: Speculator) -> None:
    """Guards transformers' streamers, also given to `generate`, which passes them on to no callable."""

    class Recorder(BaseStreamer):
        def __init__(self) -> None:
            self.seen: list[list[int]] = []
            self.ended = 0

        def put(self, value: torch.Tensor) -> None:
            self.seen.append(value.flatten().tolist())

        def end(self) -> None:
            self.ended += 1

    ids = torch.tensor([IDS])
    plain, ours, bound, given = Recorder(), Recorder(), Recorder(), Recorder()
    tiny.model.generate(ids, max_new_tokens=15, do_sample=False, streamer=plain)
    tiny.generate(ids, max_new_tokens=15, temperature=0, streamer=ours)
    tiny.model.generate(ids, max_new_tokens=15, do_sample=False, custom_generate=tiny.bind(streamer=bound))
    tiny.model.generate(ids, max_new_tokens=15, do_sample=False, streamer=given, custom_generate=tiny)
    assert plain.seen == ours.seen == bound.seen == given.seen
    assert plain.ended == ours.ended == bound.ended == given.ended == 1
    both = Recorder()
    tiny.model.generate(
        ids, max_new_tokens=15, do_sample=False, streamer=both, custom_generate=tiny.bind(streamer=both)
    )
    assert both.seen == plain.seen
    with pytest.raises(UsageError, match="a streamer each"):
        tiny.model.generate(ids, max_new_tokens=15, streamer=given, custom_generate=tiny.bind(streamer=bound))
    with pytest.raises(UnsupportedError, match="draft_model"):
        tiny.model.generate(ids, max_new_tokens=15, assistant_model=tiny.model, custom_generate=tiny)


def test_text_streamers_work(stories: Speculator, capsys: pytest.CaptureFixture[str]) -> None:
    """Guards the streamer that people really use."""
    streamer = TextStreamer(stories.tokenizer, skip_prompt=True)
    result = stories.generate("Once", max_new_tokens=12, temperature=0, streamer=streamer)
    assert capsys.readouterr().out.strip() == result.text.strip()


def test_a_cache_is_continued(tiny: Speculator) -> None:
    """Guards multi-turn use: a kept cache gives the text of a fresh start."""
    first = tiny.generate(IDS, max_new_tokens=10, temperature=0)
    longer = [*IDS, *first.ids, 17, 23]
    fresh = Speculator.from_transformers(tiny.model).generate(longer, max_new_tokens=10, temperature=0)
    kept = tiny.generate(longer, max_new_tokens=10, temperature=0, cache=first.cache)
    assert kept.ids == fresh.ids
    assert kept.stats.prompt_tokens == 3  # the last token of the answer was never in the cache


def test_a_cache_that_holds_the_whole_prompt_is_refused(tiny: Speculator) -> None:
    """Guards against a prompt with nothing left to read."""
    first = tiny.generate(IDS, max_new_tokens=10, temperature=0)
    with pytest.raises(PromptError, match="whole prompt"):
        tiny.generate(IDS, max_new_tokens=10, cache=first.cache)


def test_seeds_do_not_touch_the_default_stream(tiny: Speculator) -> None:
    """Guards callers' own randomness."""
    before = torch.get_rng_state()
    one = tiny.generate(IDS, max_new_tokens=20, temperature=1.0, seed=4)
    two = tiny.generate(IDS, max_new_tokens=20, temperature=1.0, seed=4)
    assert one.ids == two.ids
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("prompt", ["", [], torch.empty(1, 0, dtype=torch.long)])
def test_an_empty_prompt_is_refused(stories: Speculator, prompt: Any) -> None:
    """Guards the empty prompt in all its forms."""
    with pytest.raises(PromptError, match="empty"):
        stories.generate(prompt)


def test_a_prompt_beyond_the_positions_is_refused(tiny: Speculator) -> None:
    """Guards the model's positions at the prompt's end, and the note when they cut the answer."""
    with pytest.raises(PromptError, match="256 positions"):
        tiny.generate([7] * 256)
    result = tiny.generate([7] * 250, max_new_tokens=100, temperature=0)
    assert len(result.ids) <= 6
    assert "only 6 new tokens" in result.stats.notes[-1]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"temperature": -1.0}, "at least 0"),
        ({"temperature": 0.0, "top_p": 0.9}, "top_p would be ignored"),
        ({"max_new_tokens": 0}, "at least 1"),
        ({"no_such_option": 3}, "no_such_option"),
    ],
)
def test_senseless_options_are_refused(tiny: Speculator, options: dict[str, Any], reason: str) -> None:
    """Guards against options that would be ignored."""
    with pytest.raises(UsageError, match=reason):
        tiny.generate(IDS, **options)


def test_text_needs_a_tokenizer_and_chat_a_template(tiny: Speculator) -> None:
    """Guards the messages for models that lack one."""
    with pytest.raises(TokenizerError, match="token ids"):
        tiny.generate("text")
    with pytest.raises(TokenizerError, match="chat template"):
        tiny.generate([{"role": "user", "content": "hello"}])


def test_chat_messages_go_through_the_template(stories: Speculator) -> None:
    """Guards chat prompts: one start-of-text token, and the content in it."""
    ids = stories.encode_chat([{"role": "user", "content": "Once upon a time"}])
    assert ids.count(stories.tokenizer.bos_token_id) == 1
    assert "Once upon a time" in stories.tokenizer.decode(ids)
    assert stories.generate([{"role": "user", "content": "Once upon a time"}], max_new_tokens=5).stats.tokens <= 5


def test_unknown_methods_suggest_the_nearest() -> None:
    """Guards typos."""
    with pytest.raises(UnknownMethodError, match="Did you mean 'aded'"):
        Speculator.from_transformers(tiny_model("llama"), method="adedd")


def test_memory_is_kept_and_tied_to_the_tokenizer(stories: Speculator, tmp_path: Path) -> None:
    """Guards saving and loading through the front door."""
    path = tmp_path / "memory"
    taught = Speculator.from_transformers(stories.model, stories.tokenizer, memory=path, nodes=8)
    taught.generate("Once upon a time", max_new_tokens=60, temperature=0)
    taught.save(path)
    again = Speculator.from_transformers(stories.model, stories.tokenizer, memory=path, nodes=8)
    knowing = again.generate("Once upon a time", max_new_tokens=60, temperature=0).stats
    fresh = Speculator.from_transformers(stories.model, stories.tokenizer, nodes=8)
    assert knowing.rounds < fresh.generate("Once upon a time", max_new_tokens=60, temperature=0).stats.rounds
    with pytest.raises(ForeignMemoryError, match="another tokenizer"):
        Speculator.from_transformers(tiny_model("llama"), memory=path)
    with pytest.raises(UnsupportedError, match="keeps no memory"):
        Speculator.from_transformers(stories.model, stories.tokenizer, method="none", memory=path)


def test_a_method_that_saves_nothing_starts_from_a_file(stories: Speculator, tmp_path: Path) -> None:
    """Guards ADED as published: it drafts from a table, which is never written, and which must be there."""
    path, prompt = tmp_path / "table", "Once upon a time"
    options: dict[str, Any] = {"max_new_tokens": 40, "temperature": 0}
    taught = Speculator.from_transformers(stories.model, stories.tokenizer, method="aded", nodes=8)
    expected = taught.generate(prompt, **options)
    taught.save(path)
    before = path.read_bytes()

    def paper(**more: Any) -> Speculator:
        return Speculator.from_transformers(stories.model, stories.tokenizer, method="aded-paper", nodes=8, **more)

    fresh = paper().generate(prompt, **options)
    started = paper(memory=path)
    later = paper()
    later.load(path)
    for speculator in (started, later):
        found = speculator.generate(prompt, **options)
        assert found.ids == fresh.ids == expected.ids
        assert found.stats.rounds < fresh.stats.rounds
        with pytest.raises(UnsupportedError, match="'aded-paper' can start from a memory but saves none"):
            speculator.save(path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["table"]
    with pytest.raises(FileError, match="there is no memory file"):
        paper(memory=tmp_path / "missing")
    with pytest.raises(ForeignMemoryError, match="another tokenizer"):
        Speculator.from_transformers(tiny_model("llama"), method="aded-paper", memory=path)
    with pytest.raises(UnsupportedError, match="'lookup' has no memory to load"):
        Speculator.from_transformers(stories.model, method="lookup").load(path)


def test_a_users_drafter_that_only_loads(tiny: Speculator, tmp_path: Path) -> None:
    """Guards objects with `load` alone: they are given the file, which must be a memory, and save nothing."""

    class Loading(LookupDrafter):
        loaded: Path | None = None

        def load(self, path: Path) -> None:
            self.loaded = path

    path, drafter = tmp_path / "memory", Loading(vocabulary=64)
    tiny.save(path)
    speculator = Speculator.from_transformers(tiny.model, drafter=drafter, memory=path)
    assert drafter.loaded == path
    with pytest.raises(UnsupportedError, match="saves none"):
        speculator.save(path)
    with pytest.raises(FileError, match="there is no memory file"):
        Speculator.from_transformers(tiny.model, drafter=drafter, memory=tmp_path / "missing")


def test_no_nodes_is_plain_decoding(tiny: Speculator) -> None:
    """Guards nodes=0: no draft is ever made."""
    speculator = Speculator.from_transformers(tiny.model, nodes=0)
    stats = speculator.generate(IDS, max_new_tokens=10, temperature=0).stats
    assert (stats.rounds, stats.drafted, stats.mat) == (9, 0, 1.0)


@pytest.mark.parametrize("nodes", [16, "auto"])
@pytest.mark.parametrize("method", ["mix", "lookup"])
def test_drafts_are_no_deeper_than_allowed(nodes: int | str, method: str) -> None:
    """Guards `max_depth`, with sizes that are fixed and those that are chosen."""
    model = tiny_model("llama")
    speculator = Speculator.from_transformers(model, method=method, nodes=nodes, max_depth=2)
    found = speculator.generate([5, 9, 14, 3] * 8, max_new_tokens=40, temperature=0)
    assert 0 < len(found.stats.offered_by_depth) <= 2


def test_another_drafter_has_the_same_needs() -> None:
    """Guards `draft_with`: sizes and caches were set up for what the first drafter wants of passes."""
    speculator = Speculator.from_transformers(tiny_model("llama"), method="lookup")
    other = Speculator.from_transformers(tiny_model("llama"), method="maxgram").drafter
    speculator.draft_with(other)
    assert speculator.drafter is other
    with pytest.raises(UsageError, match="needs other outputs"):
        speculator.draft_with(Speculator.from_transformers(tiny_model("llama"), method="recycling").drafter)
