"""A job's events as text, for people and for pipes."""

import pytest

from llama_herd.cli.transcript import Transcript
from llama_herd.tasks.client.place_watch import Queued
from llama_herd.tasks.protocol.events import End, Event, Failure, Started, Token

STARTED = Started(at_ms=1, seq=1, job="j", epoch=1, attempt=1, worker="w", model="m", seed=1, n=3)


def token(seq: int, choice: int, text: str) -> Token:
    return Token(seq=seq, job="j", epoch=1, i=0, ids=(seq,), text=text, choice=choice, finish_reason="stop")


def test_of_several_outputs_the_first_grows_and_the_others_follow(capsys: pytest.CaptureFixture[str]) -> None:
    growing: list[Event] = [STARTED, token(2, 1, "second"), token(3, 0, "first"), token(4, 2, "third")]
    transcript, seen = Transcript("text"), list[str]()
    for event in growing:
        transcript.follow([event])
        seen.append(capsys.readouterr().out)
    assert seen == ["", "", "first", ""]
    transcript.follow([End(seq=5, job="j", epoch=1, finish_reason="stop", n=3, attempts=1)])
    assert capsys.readouterr().out == "\n\n--- 2 ---\nsecond\n\n--- 3 ---\nthird\n"
    assert transcript.exit_code == 0


def test_a_terminal_is_told_where_the_job_stands_until_it_begins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [Queued(position=3, estimated_wait_s=4.0), Queued(position=1, estimated_wait_s=None)]
    scene: list[Event | Queued] = [*places, STARTED]
    Transcript("text").follow(scene)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    Transcript("events").follow(scene)
    out, err = capsys.readouterr()
    assert out == f"{STARTED.to_json()}\n"  # the recorded events, and nothing else
    assert err.split("\r\x1b[K") == ["", "herd: 3 in the queue, about 4.0 s", "herd: 1 in the queue", ""]


@pytest.mark.parametrize(("message", "said"), [("no", "model_error: no"), ("", "model_error")])
def test_an_error_is_told_by_its_code_and_what_else_it_says(
    capsys: pytest.CaptureFixture[str], message: str, said: str
) -> None:
    error = Failure(code="model_error", message=message)
    end = End(seq=1, job="j", epoch=1, finish_reason="error", n=0, attempts=1, error=error)
    Transcript("text").follow([end])
    assert capsys.readouterr().err == f"herd: job j ended: {said}\n"


@pytest.mark.parametrize(
    ("code", "exit_code"), [("prompt_too_long", 2), ("model_error", 1), ("of_a_newer_version", 1)]
)
def test_an_error_of_the_input_has_an_exit_code_of_its_own(code: str, exit_code: int) -> None:
    transcript = Transcript("events")
    error = Failure(code=code, message="")
    transcript.follow([End(seq=1, job="j", epoch=1, finish_reason="error", n=0, attempts=1, error=error)])
    assert transcript.exit_code == exit_code
