"""`--local`: one command, nothing else; gone at the end, and again from where it was killed."""

from pathlib import Path

import psutil
import pytest

from llama_herd.worker.chaos.patience import wait_until
from tests.tiny import write_tiny_gguf
from tests.worker.batch.batch_command import BatchCommand, rows
from tests.worker.batch.killing import size

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(120)]

#: Where no Redis is: it must bring its own.
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def command(tmp_path: Path) -> BatchCommand:
    write_tiny_gguf(tmp_path / "tiny.gguf", eos=False, context_length=4096)
    return BatchCommand(tmp_path, NOWHERE)


def test_it_brings_redis_and_worker_and_goes_on_after_a_kill(command: BatchCommand) -> None:
    long = [row["body"] | {"custom_id": row["custom_id"], "max_tokens": 300} for row in rows(150)]
    command.write(long)
    options = ("--local", "--model", "tiny.gguf")
    with command.start(*options) as process:
        wait_until(lambda: size(command.output) > 0, "first answers")
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.communicate()
    num_before = command.output.read_bytes().count(b"\n")
    assert num_before < 150
    assert len(children) >= 2
    wait_until(lambda: not any(map(is_alive, children)), "its Redis and its worker ended")
    with command.start(*options) as process:
        output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert f"goes on, {num_before} rows are done" in output
    assert sorted(command.names()) == sorted(f"c{n}" for n in range(150))


def test_a_worker_that_cannot_start_ends_it(command: BatchCommand) -> None:
    command.write(rows(1))
    (command.folder / "tiny.gguf").write_bytes(b"no model")
    with command.start("--local", "--model", "tiny.gguf") as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "the worker ended with exit code 2" in errors


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
