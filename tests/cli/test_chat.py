"""Conversations, typed or piped."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from media_models import build_media_model, make_processor
from models import hybrid_model
from passes import plain_text
from speculant import Speculator
from speculant.api.loading import load_tokenizer
from speculant.cli import chat
from speculant.cli.chat import Conversation
from speculant.cli.main import main
from speculant.drafters.mix.drafter import MixSession

OPTIONS = {"max_new_tokens": 12, "temperature": 0.0}
CaptureFixture = pytest.CaptureFixture[str]
Talk = Callable[..., tuple[int, str, str]]


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture) -> Talk:
    def run(lines: str, *argv: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        code = main(["chat", "--max-new-tokens", "12", *argv])
        return code, *capsys.readouterr()

    return run


def test_the_second_answer_reads_only_what_is_new(capsys: CaptureFixture) -> None:
    """The cache is kept between turns, and the text is the one that decoding without it gives."""
    speculator = Speculator.from_pretrained()
    conversation = Conversation(speculator, OPTIONS)
    conversation.ask("Once upon a time")
    first = capsys.readouterr().out[:-1]
    conversation.ask("The dog")
    second = capsys.readouterr().out[:-1]
    messages = [
        {"role": "user", "content": "Once upon a time"},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "The dog"},
    ]
    assert speculator.last_stats is not None
    read = speculator.last_stats.prompt_tokens
    assert read < len(speculator.encode_chat(messages)) - 10
    assert second == speculator.generate(messages, **OPTIONS).text


def test_a_hybrid_models_answers_are_plain_text(capsys: CaptureFixture) -> None:
    """Guards turns on a model with states: the second goes on from the first's cache, and drafts are accepted."""
    model, tokenizer = hybrid_model(vocab_size=4096), load_tokenizer()
    speculator = Speculator.from_transformers(model, tokenizer, method="mix", nodes=6, fast=False)
    for accepted in (0, 10):  # what the first conversation has taught is drafted in the second
        conversation, messages = Conversation(speculator, OPTIONS | {"max_new_tokens": 24}), list[Any]()
        for question in ("Once upon a time", "The dog"):
            conversation.ask(question)
            answer = capsys.readouterr().out[:-1]
            messages.append({"role": "user", "content": question})
            ids = speculator.encode_chat(messages)
            plain = plain_text(model, torch.tensor([ids]), 24)
            assert answer.lstrip() == tokenizer.decode(plain, skip_special_tokens=True)  # which drops the first space
            messages.append({"role": "assistant", "content": answer})
            assert speculator.last_stats is not None
            assert speculator.last_stats.accepted >= accepted
        assert speculator.last_stats is not None
        assert speculator.last_stats.prompt_tokens < len(ids) - 10


def test_a_cache_that_shares_less_is_cut(capsys: CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that rewrites earlier turns costs time, never the text."""
    speculator = Speculator.from_pretrained()
    conversation = Conversation(speculator, OPTIONS)
    conversation.ask("Once upon a time there was a dog")
    capsys.readouterr()
    other = speculator.tokenizer("Once upon a time there was a cat. It sat")["input_ids"]
    monkeypatch.setattr(speculator, "encode_chat", lambda _: list(other))
    conversation.ask("ignored")
    assert speculator.last_stats is not None
    assert 1 <= speculator.last_stats.prompt_tokens < len(other)
    assert capsys.readouterr().out[:-1] == speculator.generate(other, **OPTIONS).text
    conversation.ask("the same prompt again, which the cache holds to its last token")
    assert speculator.last_stats.prompt_tokens == 1
    assert capsys.readouterr().out[:-1] == speculator.generate(other, **OPTIONS).text


def test_commands(talk: Talk) -> None:
    """Answers go to stdout, everything else to stderr; blank lines ask nothing."""
    code, out, err = talk("/stats\n\n/help\n/nonsense now\nTom\n/stats\n/reset\nTom\n/quit\nnever read\n")
    assert code == 0
    half = len(out) // 2
    assert out[:half] == out[half:] != "", "after /reset the same question gets the same answer"
    for part in ("nothing was generated yet", "/reset  forget", "no command /nonsense", "drafting    mix", "begins"):
        assert part in err


def test_the_end_of_input_ends_the_chat_and_saves(tmp_path: Path, talk: Talk) -> None:
    """A pipe needs no /quit."""
    code, out, _ = talk("Tom\n", "--memory", str(tmp_path / "memory"))
    assert code == 0
    assert out.endswith("\n")
    Speculator.from_pretrained(memory=tmp_path / "memory")


def test_a_model_without_template_says_so_at_once(tiny_folder: Path, talk: Talk) -> None:
    """Not only after the first question was typed."""
    code, out, err = talk("Tom\n", "--model", str(tiny_folder))
    assert (code, out) == (1, "")
    assert "has no chat template, so it cannot chat" in err


def test_a_conversation_that_no_longer_fits_can_go_on(tmp_path: Path, tiny_folder: Path, talk: Talk) -> None:
    """The question is dropped, the conversation stands, and /reset makes room."""
    for path in tiny_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{% for message in messages %}{{ message['content'] }} {% endfor %}")
    code, out, err = talk("Tom\n" + "word " * 60 + "\nTom\n/reset\nTom\n", "--model", str(tmp_path))
    assert code == 0
    assert err.count("the conversation is too long: the prompt has") == 1
    assert "/reset begins a new one" in err
    assert out


def interrupt_first_answer(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    observe, calls = MixSession.observe, list[Any]()

    def interrupted(session: MixSession, verified: Any) -> None:
        observe(session, verified)
        calls.append(verified)
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(MixSession, "observe", interrupted)
    return calls


def test_ctrl_c_ends_a_piped_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, talk: Talk) -> None:
    """The memory is saved, the half answer stays, and the exit code tells."""
    rounds = interrupt_first_answer(monkeypatch)
    code, out, _ = talk("Tom\nTom\n", "--memory", str(tmp_path / "memory"))
    assert code == 130
    assert len(rounds) == 3, "the second question is not answered"
    assert out.endswith("\n")
    Speculator.from_pretrained(memory=tmp_path / "memory")


def test_ctrl_c_ends_only_the_answer_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: CaptureFixture) -> None:
    """The half answer counts as said, and the next one is what decoding without a cache gives."""
    interrupt_first_answer(monkeypatch)
    lines = iter(["Once upon a time", "The dog", "/exit"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    speculator = Speculator.from_pretrained()
    asked: list[Any] = []
    encode = speculator.encode_chat
    monkeypatch.setattr(speculator, "encode_chat", lambda messages: asked.append(messages) or encode(messages))
    chat.talk(Conversation(speculator, OPTIONS), title="a model", method="mix")
    first, half, second = asked[-1]
    assert (first["content"], second["content"]) == ("Once upon a time", "The dog")
    assert half["role"] == "assistant"
    answer = speculator.generate(asked[-1], **OPTIONS).text
    out, err = capsys.readouterr()
    assert out == f"{half['content']}\n{answer}\n"
    assert err.startswith("Chat with a model, drafted by mix. /help lists the commands, /exit ends.")


@pytest.mark.parametrize("command", ["/exit", "/quit"])
def test_both_words_end_the_chat(command: str, talk: Talk) -> None:
    """What comes after is not read."""
    assert talk(f"{command}\nTom\n")[:2] == (0, "")


def test_sigterm_saves_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, talk: Talk) -> None:
    """Whoever ends the process politely loses no more than by Ctrl-C; the exit code is the shells' for it."""
    observe = MixSession.observe

    def terminated(session: MixSession, verified: Any) -> None:
        observe(session, verified)
        signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(MixSession, "observe", terminated)
    code, out, _ = talk("Tom\nTom\n", "--memory", str(tmp_path / "memory"))
    assert code == 143
    assert out.endswith("\n")
    assert signal.getsignal(signal.SIGTERM) is before
    Speculator.from_pretrained(memory=tmp_path / "memory")


def test_a_picture_goes_before_the_next_question(tmp_path: Path, talk: Talk) -> None:
    """Guards media in conversations: answers are the library's, later questions see the picture, bad files are told."""
    model, _ = build_media_model("llava")
    model.save_pretrained(tmp_path)
    make_processor().save_pretrained(tmp_path)
    picture = tmp_path / "red.png"
    Image.new("RGB", (8, 8), (200, 30, 90)).save(picture)
    (tmp_path / "none.png").write_bytes(b"no image")
    lines = (
        f"/image {tmp_path}/gone.png\n/audio {picture}\n/image {picture}\nw7 w8\nw9\n/image {tmp_path}/none.png\nw3\n"
    )
    code, out, err = talk(lines, "--model", str(tmp_path), "--no-fast")
    assert code == 0
    assert "there is no file" in err
    assert "takes text and image, no audio" in err
    assert "as an image" in err
    speculator = Speculator.from_pretrained(str(tmp_path), method="none", fast=False)
    asked: Any = [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": "w7 w8"}]}]
    first = speculator.generate(asked, **OPTIONS).text
    asked += [{"role": "assistant", "content": first}, {"role": "user", "content": "w9"}]
    assert out.splitlines()[:2] == [first, speculator.generate(asked, **OPTIONS).text]


def test_a_model_of_text_takes_no_picture(talk: Talk) -> None:
    """Guards the bundled model: the command says what it takes, and the chat goes on."""
    code, out, err = talk("/image x.png\nTom\n")
    assert code == 0
    assert "takes text, no image" in err
    assert out.strip()
