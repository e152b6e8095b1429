"""Two workers of one name, as processes: their logs and what a person looks at say so."""

from pathlib import Path

import pytest

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.tasks import Client
from tests.cli.herd_command import invoke
from tests.local.processes import WorkerProcess, wait_until

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.long, pytest.mark.timeout(120)]


def test_two_workers_of_one_name_are_told_and_jobs_go_on(
    server: EmbeddedRedis, tiny_path: Path, tmp_path: Path
) -> None:
    logs = [tmp_path / name for name in ("one.log", "other.log")]
    one, other = (WorkerProcess(server.url, tiny_path, "same", log, model_name="m") for log in logs)
    with one, other, Client(server.url, model="m") as client:
        for log in logs:
            wait_until(lambda log=log: "another worker has this name" in log.read_text(), log.name)  # type: ignore[misc]
        assert client.result(client.submit(prompt="once upon a time", max_tokens=3), timeout=30).text
        wait_until(lambda: client.workers()[0].complaints, "a report tells of it")
        for command in ("status", "doctor"):
            told = invoke(command, HERD_REDIS_URL=server.url, HERD_MODEL_NAME="m").output
            assert "two workers are called same@test" in " ".join(told.split()), told
            assert "--name" in told
