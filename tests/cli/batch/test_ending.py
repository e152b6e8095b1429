"""A command that ends before its rows do: by signals, by a person, from elsewhere."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from redis import Redis

from benchmarks.stand_in import StandIn
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.protocol.batch_status import RUNNING_TTL_S
from tests.chaos.harness.patience import wait_until
from tests.cli.batch.batch_command import BatchCommand, rows
from tests.cli.batch.killing import size
from tests.cli.herd_command import COMMAND, environment, invoke
from tests.local.forked_python import ForkedPython, start_piped
from tests.terminal import Terminal

pytestmark = [pytest.mark.redis, pytest.mark.program]


@contextmanager
def under_way(command: BatchCommand, worker: StandIn) -> Iterator[tuple[ForkedPython, Client]]:
    """The command with 16 of 40 rows under way; nobody answers until `worker.go_on`."""
    command.write(rows(40))
    worker.hold()
    with command.start("--window", "16") as process, Client(command.url) as client:
        wait_until(lambda: client.batches() and client.status().pending == 16, "window full")
        yield process, client


def test_a_batch_is_ended_from_elsewhere_and_the_same_command_does_the_rest(
    command: BatchCommand, worker: StandIn
) -> None:
    with under_way(command, worker) as (process, client):
        ended = invoke("batch", "--cancel", command.run_id, HERD_REDIS_URL=command.url)
        output, _ = process.communicate(timeout=30)
        assert client.status().pending == 0
    assert ended.stdout == f"batch {command.run_id} has ended; the same command runs its other rows\n"
    assert process.returncode == 1
    assert "cancelled from elsewhere; the same command runs the remaining rows" in output
    assert command.answers() == command.failures() == []
    worker.go_on()
    assert command.run().exit_code == 0
    assert sorted(command.names()) == sorted(f"c{n}" for n in range(40))


def test_the_jobs_of_a_killed_batch_are_cancelled_from_elsewhere(
    command: BatchCommand, worker: StandIn, redis: Redis
) -> None:
    with under_way(command, worker) as (process, client):
        process.kill()
        process.wait()
        report = Keys().key(f"batch:{command.run_id}")
        assert 0 < redis.ttl(report) <= RUNNING_TTL_S
        redis.expire(report, 1)  # as if the rest had passed
        ended = invoke("cancel", "--yes", "--batch", command.run_id, HERD_REDIS_URL=command.url)
        assert client.status().pending == 0
    assert ended.stdout.endswith("16 jobs cancelled\n")


def test_sigterm_leaves_the_jobs_running_and_the_same_command_fetches_them(
    command: BatchCommand, worker: StandIn
) -> None:
    with under_way(command, worker) as (process, _):
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert "16 jobs will continue on the workers. To continue: herd batch in.jsonl -o out.jsonl" in output
    worker.go_on()
    assert command.run().exit_code == 0
    assert sorted(command.names()) == sorted(f"c{n}" for n in range(40))
    assert len(worker.answered) == len(set(worker.answered)) == 40


@pytest.mark.parametrize(
    ("answer", "num_left", "options"),
    [("c", 0, ("--in-order",)), ("l", 16, ()), pytest.param("c", 0, (), marks=pytest.mark.slow)],
)
def test_ctrl_c_on_a_terminal_asks_once(
    command: BatchCommand, worker: StandIn, answer: str, num_left: int, options: tuple[str, ...]
) -> None:
    command.write(rows(40))
    worker.hold()
    with Client(command.url) as client, Terminal(200) as terminal:
        with command.start_on(terminal, "--window", "16", *options) as process:
            wait_until(lambda: client.status().pending == 16, "window full")
            terminal.type("\x03")
            terminal.read_until("[L/c]")
            terminal.type(f"{answer}\n")
            assert process.wait(30) == 128 + signal.SIGINT
        assert client.status().pending == num_left
    worker.go_on()
    assert command.run(*options).exit_code == 0
    expected = [f"c{n}" for n in range(40)]
    assert (command.names() if options else sorted(command.names(), key=expected.index)) == expected
    assert command.failures() == []


def test_ctrl_c_in_a_notebook_leaves_the_jobs_running_without_a_question(
    command: BatchCommand, worker: StandIn
) -> None:
    command.write(rows(5))
    worker.hold()
    with Client(command.url) as client, Terminal(200) as terminal:
        with command.start_on(terminal, JPY_PARENT_PID="7") as process:
            wait_until(lambda: client.status().pending == 5, "rows are under way")
            terminal.type("\x03")
            terminal.read_until("5 jobs will continue on the workers")
            assert process.wait(30) == 128 + signal.SIGINT
        assert client.status().pending == 5


def test_a_second_ctrl_c_leaves_the_jobs_running(command: BatchCommand, worker: StandIn) -> None:
    command.write(rows(5))
    worker.hold()
    with Client(command.url) as client, Terminal(200) as terminal:
        with command.start_on(terminal) as process:
            wait_until(lambda: client.status().pending == 5, "rows are under way")
            terminal.type("\x03")
            terminal.read_until("[L/c]")
            wait_until(lambda: psutil.Process(process.pid).status() == "sleeping", "it waits for the answer")
            terminal.type("\x03")
            terminal.read_until(
                "5 jobs will continue on the workers. To continue: herd batch in.jsonl -o out.jsonl"
            )
            assert process.wait(30) == 128 + signal.SIGINT
        assert client.status().pending == 5


def test_a_slow_pipe_holds_up_neither_answers_nor_signals(command: BatchCommand, worker: StandIn) -> None:
    env = environment(HERD_REDIS_URL=command.url)
    arguments = [COMMAND[-1], "batch", "-", "-o", "out.jsonl"]
    with start_piped(arguments, env, command.folder) as process:
        process.stdin.write('{"prompt": "first"}\n{"prompt": "sec')
        process.stdin.flush()
        wait_until(lambda: size(command.output) > 0, "the first row has its answer")
        assert command.names() == ["line-1"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
