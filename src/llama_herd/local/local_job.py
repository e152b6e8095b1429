"""A job in this process: the engine alone, without queue and Redis, but with a worker's events."""

import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from time import time
from typing import Any, Self

from llama_herd.errors import GenerationError
from llama_herd.tasks.ledger.answers import Yours
from llama_herd.tasks.protocol.events import Event, Failure, parse_event
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.worker.engine.interface import StepOutput
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.event_log import EventAuthor, EventLog
from llama_herd.worker.jobs.recorded_outputs import RecordedOutputs
from llama_herd.worker.loading.device import on_device, pin_device
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.loading.sequence_maker import SequenceMaker
from llama_herd.worker.settings import WorkerSettings

#: The claim of a job that has never run.
_FIRST_CLAIM = Yours(epoch=1, n=0, seq=0, deaths=0, attempts=0, due_ms=0, body="", now_ms=0)

#: The fields of a job as a model is meant to be asked.
Suit = Callable[[SequenceMaker], Mapping[str, Any]]


class LocalJob(AbstractContextManager["LocalJob"]):
    """One job and a model, which is closed with it.

    with LocalJob.load({"prompt": "Once upon a time"}, WorkerSettings()) as job:
        result = Result.from_events(job.events())
    """

    def __init__(self, job: GenerationJob, model: LoadedModel, settings: WorkerSettings) -> None:
        self._job = job
        self._model = model
        self._settings = settings
        author = EventAuthor(
            f"local@{socket.gethostname()}", settings.served_model, pieces=model.tokenizer.pieces
        )
        stream = EventLog(str(uuid.uuid4()), _FIRST_CLAIM, RecordedOutputs.from_events([]), author)
        self._attempt = Attempt(stream, deliveries=[])

    @classmethod
    def load(cls, fields: Mapping[str, Any], settings: WorkerSettings, suit: Suit | None = None) -> Self:
        """Check the job, then load the model with room for its sequences. Raises BadInput.

        suit: the fields as this model is meant to be asked; None: as they are.
        """
        job = GenerationJob.parse(fields, settings)
        job.check_deadline()
        settings = on_device(settings).model_copy(update={"slots": job.sampling.n})
        with ExitStack() as stack:
            model = stack.enter_context(LoadedModel.load(settings, pin_device(settings.device)))
            if suit is not None:
                job = GenerationJob.parse(suit(model.maker), settings)
            stack.pop_all()
        return cls(job, model, settings)

    def __exit__(self, *_: object) -> None:
        self._model.close()

    def cancel(self) -> None:
        """End the job before its next step; may be called from a signal handler."""
        self._attempt.abort = "cancelled"

    def events(self) -> Iterator[Event]:
        """Run the job, and yield its events as they come."""
        attempt, outputs = self._attempt, list[StepOutput]()
        engine = self._model.engine(self._settings, outputs.extend)
        try:
            sequences = self._model.maker.sequences(attempt.job_id, self._job, int(time() * 1000))
        except GenerationError as error:
            failure = Failure.from_error(error)
            yield parse_event(attempt.end("error", failure).event)
            return
        attempt.take(sequences, self._model.maker.echoed_prompt(self._job, sequences[0].prompt_ids))
        outputs += attempt.ended(sequences)
        engine.submit(*(sequence for sequence in sequences if sequence.finish_reason is None))
        while (engine.has_work or outputs) and not attempt.has_ended:
            if attempt.abort:
                engine.abort(attempt.sequences, attempt.abort)
            engine.step()
            entries = [entry for output in outputs for entry in attempt.record(output)]
            outputs.clear()
            yield from (parse_event(entry.event) for entry in [*entries, *attempt.stream.flush()])
