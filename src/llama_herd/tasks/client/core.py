"""What both clients have in common: settings, and where the ledger keeps what they are about."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

from llama_herd.tasks.client.dead_items import DeadItems
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.settings import Settings


@dataclass(frozen=True)
class ClientCore:
    """The settings of a client, and what follows from them. It has no connection."""

    settings: Settings

    @classmethod
    def from_settings(cls, settings: Settings | None, **given: str | int | None) -> Self:
        """A core with these settings, by default those of the environment; `given` values but None win."""
        known = {} if settings is None else settings.model_dump()
        return cls(Settings.read(**known | {name: one for name, one in given.items() if one is not None}))

    @property
    def url(self) -> str:
        return self.settings.redis_url

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger.from_settings(self.settings)

    @cached_property
    def reports(self) -> Reports:
        return Reports(self.settings.tenant)

    @cached_property
    def dead(self) -> DeadItems:
        return DeadItems(self.settings, self.ledger, DeadLetters.from_settings(self.settings))

    @property
    def queue(self) -> str:
        """The queue of the client's own model."""
        return queue_name(self.settings.default_model, self.settings.tenant)
