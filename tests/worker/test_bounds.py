"""Every number that a person may set has a lowest and a greatest value, and works at both."""

from pathlib import Path
from typing import Any

import pytest
from annotated_types import Ge, Le
from redis import Redis

from llama_herd.errors import SettingsError
from llama_herd.tasks.client.client import Client
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.settings import MAX_TTL_S
from llama_herd.worker.settings import WorkerSettings
from tests.local.processes import PATIENCE_S, WorkerProcess

NUMBERS = {
    name: field for name, field in WorkerSettings.model_fields.items() if field.annotation in (int, float)
}


@pytest.fixture(autouse=True)
def _no_env_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def bounds(name: str) -> tuple[Any, Any]:
    marks = NUMBERS[name].metadata
    (lowest,) = (mark.ge for mark in marks if isinstance(mark, Ge))
    (greatest,) = (mark.le for mark in marks if isinstance(mark, Le))
    return lowest, greatest


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_taken_at_its_bounds_and_refused_beyond(name: str) -> None:
    lowest, greatest = bounds(name)
    for value in (lowest, greatest):
        assert getattr(WorkerSettings.read(**{name: value}), name) == value
    for value in (lowest - 1, greatest + 1, "inf", "-inf", "nan", "1e999", "9" * 5000):
        with pytest.raises(SettingsError, match=rf"^{name}='?") as caught:
            WorkerSettings.read(**{name: value})
        assert len(str(caught.value)) < 200


#: The memory plan refuses so much, threads would starve others, and so many replicas are not there.
TOO_MUCH = ("context_tokens", "kv_cache_tokens", "replicas", "threads")
GREATEST = {name: bounds(name)[1] for name in NUMBERS if name not in TOO_MUCH}


@pytest.mark.redis
@pytest.mark.worker
@pytest.mark.timeout(120)
def test_a_worker_runs_jobs_and_stops_with_its_numbers_at_their_greatest(
    redis: Redis, redis_url: str, tiny_path: Path, tmp_path: Path
) -> None:
    with WorkerProcess(redis_url, tiny_path, "great", tmp_path / "log", **GREATEST) as worker:
        with Client(settings=worker.settings) as client:
            job_id = client.submit(prompt="a tale", model=tiny_path.stem, sampling={"max_tokens": 5})
            assert client.result(job_id, timeout_s=PATIENCE_S).finish_reason in ("stop", "length")
        assert worker.stop() == 0
        assert " error" not in worker.log.lower()
    assert redis.ttl(Ledger.from_settings(worker.settings).events_key(job_id)) > MAX_TTL_S - 60
