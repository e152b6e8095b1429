"""What Ctrl-C and other signals do to a command."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from llama_herd.cli.generate import cancel_or_say
from llama_herd.cli.signals import left_by_signals, on_interrupt, on_signals
from llama_herd.tasks.client.client import Client
from tests.cli.gateway_process import GatewayProcess
from tests.cli.herd_command import invoke
from tests.local.processes import PATIENCE_S


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Also where the tests run in the background, which some shells make deaf to Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_ctrl_c_asks_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    asked = []
    with on_interrupt(lambda: asked.append(True)):
        ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
    assert asked == [True]
    assert signal.getsignal(signal.SIGINT) == before


IMPORTING = """
import os, signal
from llama_herd import cli, extras
extras.missing_modules = lambda _: os.kill(os.getpid(), signal.SIGINT)
cli.main()
"""


def test_ctrl_c_before_a_command_has_begun_ends_it_without_a_word() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_terminal_that_closes_is_heard_but_not_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    asked = []
    try:
        with on_signals((signal.SIGHUP,), lambda _: asked.append("deaf")):
            os.kill(os.getpid(), signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with on_signals((signal.SIGHUP,), lambda _: asked.append("heard")):
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert asked == ["heard"]


def test_a_second_signal_does_not_break_off_what_the_first_one_closes() -> None:
    closed = []

    def leave() -> None:
        with left_by_signals() as let_go:
            let_go()
            try:
                os.kill(os.getpid(), signal.SIGHUP)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                closed.append(True)

    with pytest.raises(SystemExit) as left:
        leave()
    assert (closed, left.value.code) == ([True], 128 + signal.SIGHUP)


@pytest.mark.redis
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_gateway_in_order(redis_url: str, tmp_path: Path, number: signal.Signals) -> None:
    with GatewayProcess(redis_url, tmp_path / "log") as gateway:
        gateway.process.send_signal(number)
        assert gateway.process.wait(PATIENCE_S) == 0
        assert len(gateway.log.splitlines()) == 1  # where it listens


LOADING = """
import os, signal, sys
from llama_herd.cli.signals import load_torch
try:
    load_torch()
except KeyboardInterrupt:
    print("interrupted", "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("times", "said", "code"), [(1, "loaded\ninterrupted True\n", 0), (2, "", -signal.SIGINT)]
)
def test_ctrl_c_waits_until_torch_is_loaded_and_a_second_one_does_not(
    tmp_path: Path, times: int, said: str, code: int
) -> None:
    """The torch here interrupts itself; from the C++ of the real one, Python's way out is an abort."""
    interrupt = "os.kill(os.getpid(), signal.SIGINT); len([])\n"
    (tmp_path / "torch.py").write_text(f"import os, signal\n{interrupt * times}print('loaded')\n")
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-c", LOADING]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, said, "")


@pytest.mark.redis
def test_ctrl_c_while_celery_starts_ends_a_worker_without_a_word(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery.bin.celery.celery.invoke", lambda _: ctrl_c())
    done = invoke("worker", HERD_REDIS_URL=redis_url)
    assert (done.exit_code, done.output.strip()) == (130, "")


def test_a_cancel_that_does_not_reach_redis_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """It runs in a thread of its own, where an error would be a traceback."""
    with Client("redis://127.0.0.1:1/0") as client:
        cancel_or_say(client, "a")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("herd: job a is not cancelled: Redis at redis://127.0.0.1:1/0 cannot be reached")
