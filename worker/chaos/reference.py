"""What jobs say when nothing disturbs them."""

from collections.abc import Mapping
from typing import Any

from llama_herd.tasks.events import Token
from llama_herd.tasks.job import GenerationJob
from llama_herd.worker.device import pin_device
from llama_herd.worker.loaded_model import LoadedModel
from llama_herd.worker.local import LocalJob
from llama_herd.worker.settings import WorkerSettings


class Reference:
    """The herd's model in this process: no queue, no Redis, no batch mates, no faults."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings.model_copy(update={"slots": 1})
        self._model = LoadedModel.load(self._settings, pin_device(settings.device))

    def ids(self, fields: Mapping[str, Any]) -> tuple[int, ...]:
        """All token ids of a job, whatever its deadline."""
        timeless = {name: value for name, value in fields.items() if name != "deadline_ms"}
        job = LocalJob(GenerationJob.parse(timeless, self._settings), self._model, self._settings)
        return tuple(token_id for event in job.events() if isinstance(event, Token) for token_id in event.ids)
