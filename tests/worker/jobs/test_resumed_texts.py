"""Texts of which an earlier attempt has made vectors by a model of the same name."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from redis import Redis

from llama_herd.error_code import ErrorCode
from llama_herd.model.shape.pooling import Pooling
from llama_herd.tasks.ledger.answers import Yours
from llama_herd.tasks.ledger.held_jobs import TenantEntry, emit
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.worker import process
from llama_herd.worker.engine.interface import NewVector, SequenceInfo
from llama_herd.worker.health import WorkerHealth
from llama_herd.worker.jobs.event_log import EventAuthor, EventLog
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from llama_herd.worker.jobs.service import Service
from llama_herd.worker.settings import WorkerSettings
from llama_herd.worker.startup import start_service
from tests.chaos.harness.patience import wait_until
from tests.model.tiny_embedder import write_gguf
from tests.model.tiny_family import TINY_FAMILIES
from tests.worker.jobs.sent_message import SentMessage
from tests.worker.jobs.short_job import end_of

pytestmark = pytest.mark.redis

OTHER = "another-owner"


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    family = TINY_FAMILIES["qwen3"]
    return write_gguf(family, family.model(), tmp_path_factory.mktemp("embedder") / "tiny.gguf", Pooling.LAST)


@pytest.fixture
def embeds(
    redis_url: str, tiny_settings: WorkerSettings, embedder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Service]:
    monkeypatch.setattr(process, "device", lambda: "cpu")
    own = tiny_settings.model_copy(update={"redis_url": redis_url, "model": embedder})
    service = start_service(own, "worker@test", WorkerHealth())
    yield service
    service.drain(0.0, lambda: None)


@pytest.mark.parametrize(
    ("num_dimensions", "code"), [(32, ErrorCode.OTHER_VOCABULARY), (64, None), (0, None)]
)
def test_no_vector_stands_beside_those_of_a_model_of_another_width(
    redis: Redis, embeds: Service, num_dimensions: int, code: str | None
) -> None:
    """What a worker leaves behind with another model of this name; 0: an older worker does not tell."""
    ledger, job = Ledger(), EmbeddingJob(texts=("a llama", "a herd"))
    run_call(redis, ledger.submit("job", job, Envelope.for_job("job", "herd.tiny")))
    claimed = run_call(redis, ledger.claim("job", OTHER))
    assert isinstance(claimed, Yours)
    author = EventAuthor("other@test", "tiny", num_dimensions=num_dimensions)
    stream = EventLog("job", claimed, RecordedOutputs.from_events([]), author)
    stream.num_texts = 2
    start = stream.start(1, 3)
    stream.add(NewVector(SequenceInfo("job"), bytes(4 * (num_dimensions or 64))))
    entries = [TenantEntry(ledger, entry) for entry in (start, *stream.flush())]
    run_call(redis, emit(OTHER, entries, ledger))
    run_call(redis, ledger.release("job", OTHER, claimed.epoch))
    embeds.take(SentMessage("job"))
    wait_until(partial(end_of, redis, ledger, "job"), "the end")
    end = end_of(redis, ledger, "job")
    assert end is not None
    assert (end.error and end.error.code) == code
