"""What both clients have in common: settings, and where the ledger keeps what they are about."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from llama_herd.tasks.client.dead_items import DeadItems
from llama_herd.tasks.client.submission import AcceptedJob, Beside, enqueue, new_job
from llama_herd.tasks.ledger.dead_letters import DeadLetters
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.batch_status import BatchStatus
from llama_herd.tasks.protocol.given import checked_kind
from llama_herd.tasks.protocol.kinds import Job
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.settings import Settings


@dataclass(frozen=True)
class ClientCore:
    """The settings of a client, and what follows from them. It has no connection."""

    settings: Settings

    @classmethod
    def from_settings(cls, settings: Settings | None, **given: str | int | None) -> Self:
        """A core with these settings, by default those of the environment; `given` values but None win.

        Raises TypeError for settings of another kind, and SettingsError.
        """
        if not isinstance(settings, Settings | None):
            raise TypeError(f"settings: must be a Settings, got {type(settings).__name__}")
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

    def report_batch(self, status: BatchStatus) -> RedisCall[bool]:
        """Report a batch. Raises BadInput for what is no status."""
        return self.reports.report_batch(checked_kind("status", status, BatchStatus, "a BatchStatus"))

    async def submit(self, job: Job | None, fields: Mapping[str, Any], beside: Beside) -> AcceptedJob:
        """Check, name and enqueue a job, given whole or by its fields.

        Raises TypeError for both at once, InvalidJob, JobConflict, QueueFull, NotReplicated.
        """
        if job is not None and fields:
            raise TypeError("give a job or its fields, not both")
        if None not in (beside.job_id, beside.idempotency_key):
            raise TypeError("give a job_id or an idempotency_key, not both")
        named = new_job(fields if job is None else job, self.settings, beside)
        return await enqueue(self.ledger, named, self.settings)
