"""A batch and its workers killed at twenty random bytes: the same answers, none missing, none twice."""

from pathlib import Path

import pytest

from llama_herd.worker.embedded_redis import EmbeddedRedis
from tests.worker.batch.batch_command import BatchCommand
from tests.worker.batch.killing import OPTIONS, long_rows, random_offsets, run_with_kills, size, two_workers

pytestmark = [pytest.mark.fault, pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(400)]

NUM_ROWS, NUM_KILLS = 600, 20


def test_twenty_kills_of_a_batch_and_its_workers_change_no_answer(
    endless: Path, tmp_path: Path, figures: list[str]
) -> None:
    with EmbeddedRedis() as server, two_workers(server, endless, tmp_path) as workers:
        whole, torn = (BatchCommand(tmp_path / name, server.url) for name in ("whole", "torn"))
        for command in (whole, torn):
            command.folder.mkdir()
            command.write(long_rows(NUM_ROWS))
        assert whole.run(*OPTIONS).exit_code == 1
        run_with_kills(torn, workers, random_offsets(size(whole.output), NUM_KILLS, seed=2))
    names = [answer["custom_id"] for answer in torn.answers()]
    assert sorted(names) == sorted(whole.names())
    assert torn.texts() == whole.texts()
    assert sorted(one["line"] for one in torn.failures()) == sorted(one["line"] for one in whole.failures())
    figures.append(f"batch: {NUM_KILLS} kills, {len(names)} answers, none missing, none twice, no other text")
