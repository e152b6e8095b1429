"""The ways of many texts to their vectors, each of which outlives the deaths of what it runs through."""

import signal
import struct
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

from llama_herd import Client, EmbeddingJob, End, Started, Vectors
from llama_herd.errors import RedisUnavailable
from llama_herd.tasks.openai.embeddings import EMBEDDINGS
from tests.batch_api import Answer, BatchApi
from tests.chaos.harness.patience import wait_until
from tests.cli.batch.batch_command import BatchCommand
from tests.killed_gateways import Gateways

#: The bytes of each text's vector.
VectorOf = Mapping[str, bytes]

#: Texts of a job, and of a request.
NUM_TOGETHER = 20

#: As rows of batches have it, so that all ways last.
BULK = -10


def together(texts: Sequence[str]) -> Iterator[tuple[str, ...]]:
    yield from (tuple(texts[first : first + NUM_TOGETHER]) for first in range(0, len(texts), NUM_TOGETHER))


def lines_of(texts: Sequence[str], **body: str) -> list[Answer]:
    """A row for each text, which is its name."""
    line = {"method": "POST", "url": EMBEDDINGS}
    return [line | {"custom_id": text, "body": {"input": text, **body}} for text in texts]


def vector_of(data: Mapping[str, Any]) -> bytes:
    """The bytes of a vector, however it is written."""
    written = data["embedding"]
    return b64decode(written) if isinstance(written, str) else struct.pack(f"<{len(written)}f", *written)


def check_answers(answers: Sequence[Answer], texts: Sequence[str], vectors: VectorOf) -> None:
    """One line for each text, with its vector."""
    assert sorted(one["custom_id"] for one in answers) == sorted(texts)
    for one in answers:
        (data,) = one["response"]["body"]["data"]
        assert vector_of(data) == vectors[one["custom_id"]], one["custom_id"]


class HttpBatch:
    """A batch over HTTP, a row for each text."""

    def __init__(self, found: Gateways, texts: Sequence[str]) -> None:
        self._found, self._texts = found, texts
        rows = lines_of(texts, encoding_format="base64")
        self._batch_id = found.api.begin(rows, endpoint=EMBEDDINGS)

    def run(self, patience_s: float) -> None:
        self._found.api.end_of(self._batch_id, patience_s)

    def check(self, vectors: VectorOf) -> None:
        self._found.check_whole(self._batch_id, self._texts)
        batch = self._found.api.show(self._batch_id)
        check_answers(self._found.api.content(batch["output_file_id"]), self._texts, vectors)


class TornCommand:
    """`herd batch`, a row for each text, and again after each death."""

    def __init__(self, folder: Path, url: str, texts: Sequence[str]) -> None:
        self._texts = texts
        self._command = BatchCommand(folder, url)
        self._command.write(lines_of(texts))
        self._process = self._command.start()

    def run(self, _: float) -> None:
        while not self._has_ended():
            self._process = self._command.start()

    def _has_ended(self) -> bool:
        """False for one that was killed, or was started while there was no Redis."""
        with self._process as process:
            _, errors = process.communicate()
        has_no_redis = process.returncode == 2 and errors.startswith("herd: Redis at ")
        assert has_no_redis or process.returncode in (0, -signal.SIGKILL), errors
        return process.returncode == 0

    def kill(self) -> None:
        self._process.kill()

    def check(self, vectors: VectorOf) -> None:
        assert self._command.failures() == []
        check_answers(self._command.answers(), self._texts, vectors)


class Jobs:
    """Jobs of a client, one after the other, with the law of their streams."""

    def __init__(self, client: Client, texts: Sequence[str]) -> None:
        self._client = client
        self._jobs = {f"job-{number}": lot for number, lot in enumerate(together(texts))}

    def run(self, patience_s: float) -> None:
        for job_id, texts in self._jobs.items():
            wait_until(partial(self._has_ended, job_id, texts), f"{job_id} ends", patience_s)

    def _has_ended(self, job_id: str, texts: tuple[str, ...]) -> bool:
        with suppress(RedisUnavailable):
            self._client.submit(EmbeddingJob(texts=texts, priority=BULK), job_id=job_id)
            return self._client.history(job_id).record.is_final
        return False

    def check(self, vectors: VectorOf) -> None:
        self.num_resumed = sum(self._num_resumed(*job, vectors) for job in self._jobs.items())

    def _num_resumed(self, job_id: str, texts: Sequence[str], vectors: VectorOf) -> int:
        """How often the job has gone on elsewhere; its stream has each vector once, and one end."""
        events = list(self._client.stream(job_id))
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert [number for number, one in enumerate(events, 1) if isinstance(one, End)] == [len(events)]
        told = [number for one in events if isinstance(one, Vectors) for number in one.texts]
        assert sorted(told) == list(range(len(texts))), job_id
        found = [one.tobytes() for one in self._client.result(job_id).floats]
        assert found == [vectors[text] for text in texts], job_id
        return sum(isinstance(one, Started) and one.attempt > 1 for one in events)


class Requests:
    """Requests, some texts each, and each again that was cut off."""

    def __init__(self, api: BatchApi, texts: Sequence[str]) -> None:
        self._api, self._texts = api, texts
        self._found = dict[str, bytes]()

    def run(self, patience_s: float) -> None:
        for lot in together(self._texts):
            wait_until(partial(self._is_answered, lot), "a request is answered", patience_s)

    def _is_answered(self, texts: Sequence[str]) -> bool:
        try:
            answer = self._api.ask("POST", EMBEDDINGS, {"input": list(texts), "priority": BULK})
        except (OSError, HTTPException):
            return False
        if answer.status >= 500:
            return False
        assert answer.status == 200, answer.raw
        data = answer.json["data"]
        assert [one["index"] for one in data] == list(range(len(texts)))
        self._found |= dict(zip(texts, map(vector_of, data), strict=True))
        return True

    def check(self, vectors: VectorOf) -> None:
        assert self._found == {text: vectors[text] for text in self._texts}
