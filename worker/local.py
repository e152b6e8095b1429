"""A job in this process: the engine alone, no queue and no Redis, but the events that a worker writes."""

import socket
import uuid
from collections.abc import Iterator, Mapping
from time import time
from typing import Any, Self

from llama_herd.errors import GenerationError
from llama_herd.tasks.answers import Yours
from llama_herd.tasks.events import Event, Failure, FinishReason, parse_event
from llama_herd.tasks.job import GenerationJob
from llama_herd.tasks.ledger import Entry
from llama_herd.worker.attempt import Attempt
from llama_herd.worker.device import pin_device
from llama_herd.worker.engine import Output
from llama_herd.worker.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from llama_herd.worker.stream import Recorded, Stream

#: The claim of a job that nobody has run before.
_FIRST_CLAIM = Yours(epoch=1, n=0, seq=0, attempts=0, starts=0, submitted_ms=0, body="", now_ms=0)


class LocalJob:
    """One job and a model of its own.

    job = LocalJob.load({"prompt": "Once upon a time"}, WorkerSettings())
    result = Result.from_events(job.events())
    """

    def __init__(self, job: GenerationJob, model: LoadedModel, settings: WorkerSettings) -> None:
        self._job = job
        self._model = model
        self._settings = settings
        self._attempt = Attempt(Stream(str(uuid.uuid4()), _FIRST_CLAIM, Recorded((), "")), deliveries=[])
        self._worker = f"local@{socket.gethostname()}"

    @classmethod
    def load(cls, fields: Mapping[str, Any], settings: WorkerSettings) -> Self:
        """Check the job, then load the model with room for one sequence. Raises BadInput."""
        job = GenerationJob.parse(fields, settings)
        settings = settings.model_copy(update={"slots": 1})
        return cls(job, LoadedModel.load(settings, pin_device(settings.device)), settings)

    def cancel(self) -> None:
        """End the job before its next step; may be called from a signal handler."""
        if self._attempt.sequence is not None:
            self._attempt.sequence.abort = "cancelled"

    def events(self) -> Iterator[Event]:
        """Run the job; its events as they come."""
        attempt, outputs = self._attempt, list[Output]()
        engine = self._model.engine(self._settings, outputs.extend)
        try:
            attempt.sequence = self._model.sequence(attempt.job_id, self._job, now_ms=int(time() * 1000))
        except GenerationError as error:
            failure = Failure(code=error.code, message=error.message, retriable=error.retriable)
            yield _event(self._end("error", failure))
            return
        engine.submit(attempt.sequence)
        while engine.has_work:
            engine.step()
            for output in outputs:
                yield from map(_event, self._entries(output))
            outputs.clear()

    def _entries(self, output: Output) -> list[Entry]:
        stream = self._attempt.stream
        if output.has_started:
            return [self._start()]
        entries = []
        if output.ids or output.text:
            self._attempt.note_token()
            stream.add(output.tokens, output.text)
            entries = stream.flush()
        if output.finish_reason is not None:
            entries.append(self._end(output.finish_reason))
        return entries

    def _start(self) -> Entry:
        attempt, model = self._attempt, self._settings.served_model
        attempt.start()
        return attempt.stream.start(self._worker, model, attempt.seed, attempt.num_prompt_tokens)

    def _end(self, finish_reason: FinishReason, error: Failure | None = None) -> Entry:
        attempt = self._attempt
        return attempt.stream.end(
            finish_reason, self._worker, attempt.num_prompt_tokens, attempt.timings, error
        )


def _event(entry: Entry) -> Event:
    return parse_event(entry.event)
