"""An exception is logged with its kind and place, and in its own words only where these quote no prompt."""

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import redis
import structlog
import torch
from celery import Celery
from celery.utils.log import get_logger
from kombu.message import Message
from pydantic import TypeAdapter
from torch._subclasses.fake_tensor import dump_cache_stats

from llama_herd.errors import GenerationError
from llama_herd.ops.logs import HEAD, JobLine, is_for_people, set_up_logs
from llama_herd.ops.settings import LogFormat
from llama_herd.tasks.protocol.message import TASK_NAME
from llama_herd.worker.broker.celery_config import configure_logs
from llama_herd.worker.engine import engine
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.sequence import Handling
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.worker.engine_run import run, sequence

CANARY = "canary-4711"

Shown = Callable[[], str]


@pytest.fixture(params=["json", "console"])
def shown(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    """Asks for what was logged, in both formats."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with redirect_stderr(StringIO()) as stream:
        set_up_logs(request.param)
    yield stream.getvalue
    structlog.reset_defaults()


class Quoting(Detokenizer):
    """Fails as code does that looks something up by what a job has said."""

    def write(self, token_id: int, *, may_stop: bool = True) -> str:
        raise KeyError(f"a {CANARY}")


def test_a_row_whose_exception_quotes_its_prompt_is_logged_without_it(
    tiny_settings: WorkerSettings, shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "log", structlog.get_logger("engine"))
    model = LoadedModel.load(tiny_settings, "cpu")
    broken = sequence(model, "job-1", f"a {CANARY}")
    broken.detokenizer = Quoting([])
    broken.handling = Handling(LINE._asdict())
    assert run(model, tiny_settings, [broken]).ends == {"job-1": ["error"]}
    log = shown()
    assert "row failed" in log
    assert "KeyError" in log
    assert "in write" in log
    assert CANARY not in log
    assert "job-1" in log
    assert "acme" in log


def look_up() -> None:
    dict[str, str]()[CANARY]


def validate() -> None:
    TypeAdapter(int).validate_python(CANARY)


def encode() -> None:
    f"{CANARY}\ud800".encode()


def fail_twice(prompt: str = CANARY) -> None:
    try:
        look_up()
    except KeyError as error:
        raise RuntimeError("a bug") from error


@pytest.mark.parametrize(
    ("fail", "names"),
    [
        (look_up, ["KeyError"]),
        (validate, ["ValidationError"]),
        (encode, ["UnicodeEncodeError"]),
        (fail_twice, ["in fail_twice", "in look_up", "KeyError", "RuntimeError: a bug"]),
    ],
)
def test_the_kind_and_the_place_are_shown_but_no_variable_and_no_unknown_text(
    fail: Callable[[], None], names: list[str], shown: Shown
) -> None:
    try:
        fail()
    except Exception:
        structlog.get_logger("test").exception("failed")
    log = shown()
    assert CANARY not in log
    places = [log.index(name) for name in names]
    assert places == sorted(places)


@pytest.mark.parametrize("fail", [look_up, validate, encode, fail_twice])
def test_celery_quotes_no_exception_either(fail: Callable[[], None], shown: Shown) -> None:
    Celery(set_as_current=False).task(name="fail", shared=False)(fail).apply()
    try:
        fail()
    except Exception as error:
        logging.getLogger("celery.worker").critical("Unrecoverable error: %r", error, exc_info=True)
    log = shown()
    assert "raised unexpected" in log
    assert "Unrecoverable error" in log
    assert log.count("Error") > 3
    assert CANARY not in log


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            GenerationError("too_long", "a prompt of 9 tokens"),
            "GenerationError: too_long: a prompt of 9 tokens",
        ),
        (ConnectionRefusedError(111, "Connection refused"), "ConnectionRefusedError: [Errno 111] Connection"),
        (redis.ConnectionError("Error 111 connecting to redis:6379"), "Error 111 connecting to redis:6379"),
        (ImportError("libcudart.so.13: cannot open"), "ImportError: libcudart.so.13: cannot open"),
        (torch.OutOfMemoryError("CUDA out of memory"), "torch.OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_what_our_errors_redis_the_system_and_torch_say_is_shown(
    error: Exception, text: str, shown: Shown
) -> None:
    structlog.get_logger("test").error("failed", exc_info=error)
    assert text in shown()


class LostChannel:
    """The channel of a connection that broke."""

    no_ack_consumers = None

    def basic_ack(self, *_: object, **__: object) -> None:
        raise redis.ConnectionError("Connection refused")

    basic_reject = basic_ack


@pytest.mark.parametrize("act", [Message.ack_log_error, Message.reject_log_error])
def test_an_ack_that_finds_no_redis_is_one_line_and_a_warning(act: Callable[..., None], shown: Shown) -> None:
    message = Message(delivery_tag="tag-1", channel=LostChannel())
    act(message, get_logger("celery.worker.request"), (redis.ConnectionError,))
    (line,) = shown().splitlines()
    assert "tag-1" in line
    assert "Connection refused" in line
    assert "warning" in line
    assert "critical" not in line


LINE = JobLine("job-1", 2, "w@host", "m", "acme", "0af7651916cd43dd8448eb211c80319c")


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], dict[str, Any]]]:
    """Asks for the only line of a process that serves one model."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with redirect_stderr(StringIO()) as stream:
        set_up_logs(known={"worker": "w@host", "model": "m"})

    def parsed() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(stream.getvalue())
        return found

    yield parsed
    structlog.reset_defaults()


def test_a_line_of_a_job_begins_alike_whatever_it_says(entry: Callable[[], dict[str, Any]]) -> None:
    structlog.get_logger("test").warning("lost", reason="a", **dict(reversed(LINE._asdict().items())))
    assert list(entry()) == [*HEAD, *LINE._fields, "reason"]
    assert JobLine(*(entry()[name] for name in LINE._fields)) == LINE


def test_what_nobody_knows_of_a_job_is_null(entry: Callable[[], dict[str, Any]]) -> None:
    structlog.get_logger("test").warning("lost", job_id="job-1")
    told = [entry()[name] for name in LINE._fields]
    assert told == ["job-1", None, "w@host", "m", None, None]


def test_a_line_of_no_job_has_none_of_it(entry: Callable[[], dict[str, Any]]) -> None:
    structlog.get_logger("test").warning("Redis is full")
    assert list(entry()) == list(HEAD)


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("Task %(name)s[%(id)s] raised", ({"name": TASK_NAME, "id": "job-1"},)),
        ("Discarding revoked task: %s[%s]", (TASK_NAME, "job-1")),
        ("Discarding revoked task: %s[%s]", ("herd.embed", "job-1")),
    ],
)
def test_celerys_line_of_a_job_names_it_in_the_same_place(
    text: str, args: tuple[Any, ...], entry: Callable[[], dict[str, Any]]
) -> None:
    logging.getLogger("celery.worker.request").warning(text, *args)
    assert list(entry()) == [*HEAD, *LINE._fields]
    assert entry()["job_id"] == "job-1"


def test_text_leaves_out_what_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with redirect_stderr(StringIO()) as stream:
        set_up_logs("console")
    structlog.get_logger("test").warning("lost", tenant="acme", job_id="job-1")
    structlog.reset_defaults()
    assert "job_id=job-1 tenant=acme" in stream.getvalue()
    assert "trace_id" not in stream.getvalue()


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("log_format", "stream", "is_text"),
    [
        ("auto", Terminal(), True),
        ("auto", StringIO(), False),
        ("json", Terminal(), False),
        ("console", StringIO(), True),
    ],
)
def test_lines_are_text_on_a_terminal_unless_told_otherwise(
    log_format: LogFormat, stream: StringIO, is_text: bool
) -> None:
    with redirect_stderr(stream):
        assert is_for_people(log_format) is is_text


@pytest.mark.parametrize("level", ["WARNING", "warning"])
def test_less_urgent_lines_are_left_out(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    settings = WorkerSettings.model_validate({"log_level": level})
    with redirect_stderr(StringIO()) as stream:
        set_up_logs("json", settings.log_level.upper())
    structlog.get_logger("test").info("left out")
    structlog.get_logger("test").warning("told")
    structlog.reset_defaults()
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["told"]


def test_what_torch_tells_of_its_cache_at_an_end_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    for name in ("torch", "torch._subclasses.fake_tensor"):  # as they are while torch is imported
        monkeypatch.setattr(logging.getLogger(name), "level", logging.NOTSET)
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    with redirect_stderr(StringIO()) as stream:
        set_up_logs("json")
    dump_cache_stats()
    structlog.reset_defaults()
    assert stream.getvalue() == ""


@pytest.fixture
def _own_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leaves the root's handlers as they were, and what Celery redirects."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("_own_root")
def test_celerys_option_logfile_names_a_file_which_may_be_rotated(tmp_path: Path) -> None:
    path = tmp_path / "w.log"
    with redirect_stderr(Terminal()) as stream:
        configure_logs("w@host", logging.INFO, str(path))
        structlog.get_logger("test").info("first")
        path.rename(tmp_path / "w.log.1")
        print("second", file=sys.stderr)  # as a worker does that cannot start
        print("third")  # as a shop's task does
    written = (tmp_path / "w.log.1").read_text() + path.read_text()
    told = [(line["level"], line["event"]) for line in map(json.loads, written.splitlines())]
    assert told == [("info", "first"), ("error", "second"), ("warning", "third")]
    assert stream.getvalue() == ""


@pytest.mark.usefixtures("_own_root")
def test_a_log_that_cannot_be_written_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        configure_logs("w@host", logging.INFO, str(tmp_path))
    line = capsys.readouterr().err
    assert (caught.value.code, line.count("\n")) == (2, 1)
    assert line.startswith(f"herd worker: --logfile {tmp_path} cannot be written: Is a directory. Fix: ")
