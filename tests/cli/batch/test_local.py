"""`--local`: one command, nothing else; gone at the end, and again from where it was killed."""

import json
import signal
from pathlib import Path

import pytest
from psutil import Process

from tests.chaos.harness.patience import wait_until
from tests.cli.batch.batch_command import BatchCommand, rows
from tests.cli.batch.killing import children_of, is_alive
from tests.terminal import Terminal
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.redis, pytest.mark.program, pytest.mark.timeout(120)]

#: Where no Redis is: it must bring its own.
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def command(tmp_path: Path) -> BatchCommand:
    write_tiny_gguf(tmp_path / "tiny.gguf", eos=False, context_length=4096)
    return BatchCommand(tmp_path, NOWHERE)


def test_one_command_brings_all_that_it_needs_and_leaves_none_of_it(command: BatchCommand) -> None:
    command.write(rows(3))
    children: list[Process] = []

    def have_all_started() -> bool:
        children[:] = children_of(process.pid)
        return len(children) >= 2 or process.poll() is not None

    given = ("--local", "--model", "tiny.gguf", "--json")
    with command.start_anew(*given, HERD_TENANTS="acme") as process:
        wait_until(have_all_started, "all started")
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "watch it from elsewhere:\\n  HERD_REDIS_URL=redis://127.0.0.1:" in output
    unserved = {event["unserved"] for event in map(json.loads, output.splitlines()) if "unserved" in event}
    assert unserved == {""}  # also while its worker starts
    assert sorted(command.names()) == ["c0", "c1", "c2"]
    assert len(children) >= 2
    assert not any(map(is_alive, children))


def test_ctrl_c_ends_all_that_it_brought_without_a_question(command: BatchCommand) -> None:
    command.write(rows(3))
    with (
        Terminal(200) as terminal,
        command.start_on(terminal, "--local", "--model", "tiny.gguf") as process,
    ):
        terminal.read_until("begins")
        terminal.type("\x03")
        terminal.read_until("jobs will end with this run, and begin again. To continue: herd batch in.jsonl")
        assert process.wait(30) == 128 + signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_all_starts_leaves_no_folder(command: BatchCommand, number: signal.Signals) -> None:
    command.write(rows(3))
    with command.start_anew("--local", "--model", "tiny.gguf") as process:
        wait_until(lambda: any(command.folder.glob("herd-redis-*")), "Redis starts")
        process.send_signal(number)
        process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert not [*command.folder.glob("herd-*")]


@pytest.mark.fault
def test_a_worker_that_cannot_start_ends_it(command: BatchCommand) -> None:
    command.write(rows(1))
    (command.folder / "tiny.gguf").write_bytes(b"no model")
    with command.start_anew("--local", "--model", "tiny.gguf") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "ended with exit code 2" in errors
