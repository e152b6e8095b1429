"""The outputs of jobs when nothing disturbs them."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from llama_herd.local.local_job import LocalJob
from llama_herd.tasks.protocol.events import Token
from llama_herd.tasks.protocol.job import CHAT_FIELDS, SOURCES, GenerationJob, seed_of
from llama_herd.tasks.protocol.structured_outputs import FORM_FIELDS
from llama_herd.worker.loading.device import on_device, pin_device
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings


class ReferenceOutputs(Protocol):
    """Knows the outputs of jobs when nothing disturbs them."""

    def ids(self, job_id: str, fields: Mapping[str, Any]) -> tuple[int, ...]:
        """All token ids of a job, whatever its deadline."""


class Reference:
    """The herd's model in this process: no queue, no Redis, no other rows in the batch, no faults.

    It may serve several herds of this model, one after the other, and computes no job twice.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = on_device(settings).model_copy(update={"slots": 1})
        self._model = LoadedModel.load(self._settings, pin_device(self._settings.device))
        self._known: dict[str, tuple[int, ...]] = {}

    def ids(self, job_id: str, fields: Mapping[str, Any]) -> tuple[int, ...]:
        """All token ids of a job, whatever its deadline."""
        drawn = {name: fields[name] for name in (*SOURCES, *CHAT_FIELDS, *FORM_FIELDS) if name in fields}
        sampling = {"seed": seed_of(job_id), **fields["sampling"]}
        job = GenerationJob.parse({**drawn, "sampling": sampling}, self._settings)
        key = job.model_dump_json()
        if key not in self._known:
            self._known[key] = tuple(self._ids(job))
        return self._known[key]

    def _ids(self, job: GenerationJob) -> Iterator[int]:
        for event in LocalJob(job, self._model, self._settings).events():
            if isinstance(event, Token):
                yield from event.ids
