"""A batch and its workers killed at random bytes: the same answers, none missing, none twice."""

from pathlib import Path

import pytest

from llama_herd.counted import counted
from llama_herd.local.redis_server import EmbeddedRedis
from tests.chaos.harness.patience import need, wait_until
from tests.cli.batch.batch_command import BatchCommand, rows
from tests.cli.batch.killing import (
    OPTIONS,
    children_of,
    deterministic_workers,
    is_alive,
    long_rows,
    random_offsets,
    run_with_kills,
    size,
)
from tests.tiny import write_tiny_gguf

pytestmark = [pytest.mark.fault, pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(400)]

#: Rows of a run with its own worker: several times as many as it computes at once.
NUM_LOCAL = 60


@pytest.mark.parametrize(("num_rows", "num_kills"), [(150, 5), pytest.param(600, 20, marks=pytest.mark.slow)])
def test_kills_of_a_batch_and_its_workers_change_no_answer(
    num_rows: int, num_kills: int, endless: Path, tmp_path: Path, figures: list[str]
) -> None:
    with EmbeddedRedis() as server, deterministic_workers(2, server, endless, tmp_path) as workers:
        whole, torn = (BatchCommand(tmp_path / name, server.url) for name in ("whole", "torn"))
        for command in (whole, torn):
            command.folder.mkdir()
            command.write(long_rows(num_rows))
        assert whole.run(*OPTIONS).exit_code == 1
        run_with_kills(torn, workers, random_offsets(size(whole.output), num_kills, seed=2))
    assert sorted(one["line"] for one in torn.failures()) == sorted(one["line"] for one in whole.failures())
    names = [answer["custom_id"] for answer in torn.answers()]
    assert sorted(names) == sorted(whole.names())
    assert torn.texts() == whole.texts()
    figures.append(f"batch: {num_kills} kills, {len(names)} answers, none missing, none twice, no other text")


def test_a_batch_with_its_own_redis_and_worker_goes_on_after_a_kill(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", eos=False, context_length=4096)
    command = BatchCommand(tmp_path, "redis://127.0.0.1:1/0")
    long = [row["body"] | {"custom_id": row["custom_id"], "max_tokens": 300} for row in rows(NUM_LOCAL)]
    command.write(long)
    options = ("--local", "--model", "tiny.gguf")
    with command.start(*options) as process:
        wait_until(lambda: size(command.output) > 0, "first answers")
        children = children_of(process.pid)
        process.kill()
        process.communicate()
    num_before = command.output.read_bytes().count(b"\n")
    need(num_before < NUM_LOCAL, "some rows are left")
    assert len(children) >= 2
    wait_until(lambda: not any(map(is_alive, children)), "its Redis and its worker ended")
    with command.start(*options) as process:
        output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    assert f"continues, {counted(num_before, 'row')} done" in output
    assert sorted(command.names()) == sorted(f"c{n}" for n in range(NUM_LOCAL))
