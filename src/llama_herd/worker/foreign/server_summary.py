"""ServerSummary: what the server of some settings is, and what it can do, for `herd inspect`."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

from llama_herd.errors import SettingsError
from llama_herd.model.files.model_texts import open_texts
from llama_herd.worker.foreign.backend import FieldUse, ServerBusy, ServerFacts, ServerFault
from llama_herd.worker.foreign.http import ServerAway
from llama_herd.worker.foreign.model import backend_of
from llama_herd.worker.foreign.served_facts import ServedFacts
from llama_herd.worker.settings import WorkerSettings


@dataclass(frozen=True)
class ServerSummary:
    """A server, whether its tokenizer was compared, and what becomes of each field of a job."""

    engine: str
    url: str
    facts: ServerFacts
    is_compared: bool
    forms: Collection[str]
    fields: Mapping[str, FieldUse]

    @classmethod
    def from_settings(cls, settings: WorkerSettings) -> Self:
        """Ask the server once. Raises SettingsError if it is away, or cuts texts into other ids."""
        backend, texts = backend_of(settings), open_texts(settings.model)
        asked = ServedFacts.ask(backend, texts.tokenizer, str(settings.model), settings.served_model)
        try:
            served = asyncio.run(asked)
        except (ServerAway, ServerBusy, ServerFault) as error:
            problem = f"HERD_ENGINE_URL={settings.engine_url}: no {backend.name} that is ready: {error}"
            raise SettingsError(f"{problem}. Fix: start it there, or name its address") from None
        forms, fields = backend.forms, dict(sorted(backend.fields.items()))
        return cls(backend.name, settings.engine_url, served.facts, served.is_compared, forms, fields)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return {
            "engine": self.engine,
            "url": self.url,
            **self.facts._asdict(),
            "is_tokenizer_compared": self.is_compared,
            "forms": list(self.forms),
            "fields": {name: use._asdict() for name, use in self.fields.items()},
        }
