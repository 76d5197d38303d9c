"""Rows as token ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from speculant.api.loading import load_tokenizer
from speculant.core.errors import TokenizerError, UnsupportedError
from speculant.corpus.encoding import RowEncoder
from speculant.corpus.exclusions import Exclusions, read_exclusions, texts_of
from speculant.corpus.rows import CorpusRow, read_row

STORY = "Once upon a time there was a little dog who lived in a big red house near the river with his friends."
OTHER = "The cat and the bird went to the park, and they played with a ball until the sun went down behind the trees."


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Return the bundled one, which has a chat template."""
    return load_tokenizer()


@pytest.fixture
def bare() -> Any:
    """Return one without a template."""
    found = load_tokenizer()
    found.chat_template = None
    return found


def row(value: Any) -> CorpusRow:
    return read_row(value, vocabulary=4096, place=1)


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def test_conversations_are_rendered(tokenizer: Any) -> None:
    """So that what ends a turn is learned, exactly as a server would see the conversation."""
    rows = [row(chat("Hello", "Hi")), row({"prompt": "Hello", "output": "Hi"}), row({"text": "Hello"})]
    encoded = RowEncoder(tokenizer, vocabulary=4096).encode(rows)
    text = tokenizer.apply_chat_template(chat("Hello", "Hi")["messages"], tokenize=False)
    begun = text.startswith(tokenizer.bos_token)
    assert encoded[0].documents == [tokenizer(text, add_special_tokens=not begun)["input_ids"]]
    assert encoded[1] == encoded[0]
    assert encoded[2].documents == [tokenizer("Hello")["input_ids"]]
    assert encoded[0].documents[0].count(tokenizer.bos_token_id) <= 1


def test_messages_without_a_template(bare: Any) -> None:
    """Each is a document, and ids are taken as they are."""
    rows = [row(chat("Hello", "Hi")), row({"ids": [5, 6]})]
    encoded = RowEncoder(bare, vocabulary=4096).encode(rows)
    assert encoded[0].documents == bare(["Hello", "Hi"])["input_ids"]
    assert encoded[1].documents == [[5, 6]]


def test_templates_that_refuse(tokenizer: Any) -> None:
    """A conversation that the template does not take is learned all the same, and counted."""
    picky = load_tokenizer()
    picky.chat_template = "{{ raise_exception('roles must alternate') }}"
    encoder = RowEncoder(picky, vocabulary=4096)
    assert encoder.encode([row(chat("Hello", "Hi"))])[0].documents == picky(["Hello", "Hi"])["input_ids"]
    assert encoder.refused == 1


def test_templates_without_jinja(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package is not taken for a template that refuses."""

    def missing(*_: Any, **__: Any) -> None:
        raise ImportError("apply_chat_template requires jinja2")

    broken = load_tokenizer()
    monkeypatch.setattr(type(broken), "apply_chat_template", missing)
    with pytest.raises(UnsupportedError, match="jinja2"):
        RowEncoder(broken, vocabulary=4096)


def test_ids_beyond_the_vocabulary(tokenizer: Any) -> None:
    """A tokenizer of another model is found out before its ids are learned."""
    with pytest.raises(TokenizerError, match="another model's"):
        RowEncoder(tokenizer, vocabulary=10).encode([row({"text": STORY})])


def test_what_is_excluded(tokenizer: Any) -> None:
    """Whatever form quotes an excluded text, and nothing else: neither the template nor a short phrase excludes."""
    exclusions = Exclusions(tokenizer)
    exclusions.add([STORY, "Hello"])
    exclusions.drop_template()
    inner = " ".join(STORY.split()[2:])
    ids = tokenizer(f"Yes. {inner}")["input_ids"]
    rows = {
        True: [{"text": f"He said: {inner}"}, chat("Hello", STORY), {"prompt": STORY, "output": "x"}, {"ids": ids}],
        False: [{"text": OTHER}, chat("Hello", OTHER), {"text": STORY[:20]}, {"ids": ids[:8]}],
    }
    encoder = RowEncoder(tokenizer, vocabulary=4096, exclusions=exclusions)
    plain = RowEncoder(tokenizer, vocabulary=4096)
    for excluded, values in rows.items():
        encoded = encoder.encode(list(map(row, values)))
        assert [each.excluded for each in encoded] == [excluded] * len(values)
        expected = plain.encode(list(map(row, values)))
        assert [each.documents for each in encoded] == [each.documents for each in expected]


def test_recordings_of_the_model_are_compared_without_its_template(tokenizer: Any) -> None:
    """Ids of two conversations share the template's words, which are no contamination."""
    wordy = load_tokenizer()
    preamble = "You are a story teller who tells the best stories in the world to all who like to hear them."
    wordy.chat_template = (
        preamble + "{% for m in messages %}</s>{{ m['role'] }}:</s>{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}</s>assistant:</s>{% endif %}"
    )
    encoder = RowEncoder(wordy, vocabulary=4096)
    recorded, other = (encoder.encode([row(chat("Tell me a story.", text))])[0].documents[0] for text in (STORY, OTHER))
    exclusions = Exclusions(wordy)
    exclusions.add([recorded])
    exclusions.drop_template()
    assert exclusions.share(recorded)
    assert not exclusions.share(other)


def test_texts_of_any_row() -> None:
    """Files to exclude may have any form: every string counts, and ids under their names."""
    row = {"id": 3, "turns": ["a", {"b": "c"}], "prompt_ids": [1, 2], "output_ids": [3], "scores": [7, 8]}
    assert list(texts_of(row)) == [[1, 2, 3], "a", "c"]


def test_files_to_exclude(tmp_path: Path, tokenizer: Any) -> None:
    """Text, and rows of text and of ids."""
    ids = tokenizer(OTHER, add_special_tokens=False)["input_ids"]
    (tmp_path / "a.txt").write_text(STORY)
    (tmp_path / "b.jsonl").write_text(json.dumps({"prompt_ids": ids[:5], "output_ids": ids[5:]}) + "\n{}\n")
    (tmp_path / "c.json").write_text(json.dumps([{"question": STORY}]))
    for name, text in (("a.txt", STORY), ("b.jsonl", OTHER), ("c.json", STORY)):
        found = read_exclusions([tmp_path / name], tokenizer, advance=lambda _: None, reject=pytest.fail)
        assert found.share(tokenizer(text)["input_ids"])
        assert not found.share(tokenizer(OTHER if text is STORY else STORY)["input_ids"])
