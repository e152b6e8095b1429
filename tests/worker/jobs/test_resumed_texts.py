"""Texts of which an earlier attempt has made vectors by a model of the same name."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from structlog.testing import capture_logs

from llama_herd.error_code import ErrorCode
from llama_herd.model.files.open_model import open_model
from llama_herd.model.shape.pooling import Pooling
from llama_herd.tasks.ledger.answers import Yours
from llama_herd.tasks.ledger.held_jobs import TenantEntry, emit
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.events import End, Started
from llama_herd.tasks.protocol.message import Envelope
from llama_herd.worker import process
from llama_herd.worker.engine.interface import NewVector, SequenceInfo
from llama_herd.worker.health import WorkerHealth
from llama_herd.worker.jobs.event_log import EventAuthor, EventLog
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from llama_herd.worker.jobs.service import Service
from llama_herd.worker.settings import WorkerSettings
from llama_herd.worker.startup import start_service
from tests.model.tiny_embedder import write_gguf
from tests.model.tiny_family import TINY_FAMILIES
from tests.worker.jobs.sent_message import SentMessage
from tests.worker.jobs.short_job import the_end

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
    end = resumed(redis, embeds, EventAuthor("other@test", "tiny", num_dimensions=num_dimensions))
    assert (end.error and end.error.code) == code


@pytest.mark.parametrize("digest", ["0123456789abcdef", "own", ""])
def test_a_worker_says_that_it_goes_on_with_other_weights(
    redis: Redis, embeds: Service, embedder: Path, digest: str
) -> None:
    """An older worker, and one in front of another server, does not tell."""
    with open_model(embedder) as model:
        own = model.weights_digest()
    author = EventAuthor("other@test", "tiny", weights_digest=own if digest == "own" else digest)
    with capture_logs() as logs:
        assert resumed(redis, embeds, author).error is None
    told = [(line["own"], line["before"]) for line in logs if "other weights" in line["event"]]
    assert told == ([(own, [digest])] if len(digest) == len(own) else [])
    starts = [one for one in run_call(redis, Ledger().read("job")) if isinstance(one, Started)]
    assert [one.weights_digest for one in starts] == [author.weights_digest or None, own]


def resumed(redis: Redis, embeds: Service, author: EventAuthor) -> End:
    """The end of a job with a vector of this author."""
    ledger, job = Ledger(), EmbeddingJob(texts=("a llama", "a herd"))
    run_call(redis, ledger.submit("job", job, Envelope.for_job("job", "herd.tiny")))
    claimed = run_call(redis, ledger.claim("job", OTHER))
    assert isinstance(claimed, Yours)
    stream = EventLog("job", claimed, RecordedOutputs.from_events([]), author)
    stream.num_texts = 2
    start = stream.start(1, 3)
    stream.add(NewVector(SequenceInfo("job"), bytes(4 * (author.num_dimensions or 64))))
    entries = [TenantEntry(ledger, entry) for entry in (start, *stream.flush())]
    run_call(redis, emit(OTHER, entries, ledger))
    run_call(redis, ledger.release("job", OTHER, claimed.epoch))
    embeds.take(SentMessage("job"))
    return the_end(redis, "job")
