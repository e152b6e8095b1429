"""Places in the queue: where a job stands as long as no worker has begun it."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field
from redis.exceptions import NoScriptError, ResponseError

from llama_herd.tasks.client.arguments import checked_after
from llama_herd.tasks.client.submission import checked_job_id
from llama_herd.tasks.connection.complaint import is_denied
from llama_herd.tasks.ledger.answers import Place
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import each, raise_if_error
from llama_herd.tasks.protocol.events import Event


class Queued(BaseModel, frozen=True):
    """A place in the queue. It is no event of the job: it has no number, and nobody keeps it."""

    type: Literal["queued"] = Field(default="queued", description="Tells it apart from the job's own events.")
    position: int = Field(
        description="1: it is next. Counted by the time of acceptance, whatever the priority."
    )
    estimated_wait_s: float | None = Field(
        description="How long it will wait at the recent rate; null if nothing was taken lately."
    )


async def read_places(ledger: Ledger, job_ids: Sequence[str]) -> list[Place | None]:
    """Where each job stands; None if it does not wait, or if this user of Redis may not know it."""
    answers = (await each([ledger.place(job_id) for job_id in job_ids])) if job_ids else []
    known = [None if isinstance(one, ResponseError) and is_withheld(one) else one for one in answers]
    return [raise_if_error(one) for one in known]


def is_withheld(error: ResponseError) -> bool:
    """Whether this user may not know. A user who may not load a script lacks it until a worker has come."""
    return is_denied(error) or isinstance(error, NoScriptError)


class PlaceWatch:
    """Reports a job's place in the queue each time that it has changed, until the job's first event."""

    def __init__(self, ledger: Ledger, job_id: str, *, after: int | str) -> None:
        """after: the last event that the reader knows; 0: none yet. Raises InvalidJob, BadInput."""
        self._ledger = ledger
        self._job_id = checked_job_id(job_id)
        self._has_begun = checked_after(after)[0] > 0
        self._last: Place | None = None

    def changes(self, events: Sequence[Event], place: Place | None) -> list[Queued]:
        """The place that was looked up after these events, as a `Queued`; none if it is not new."""
        self._has_begun |= bool(events)
        if self._has_begun or place is None or place == self._last:
            return []
        self._last = place
        return [Queued(position=place.position, estimated_wait_s=place.wait_s)]

    async def look_up(self, events: list[Event]) -> list[Queued]:
        """Look up the job's place after these events, and return it as `changes` does.

        There is none for a user of Redis who may not know it.
        """
        self._has_begun |= bool(events)
        if self._has_begun:
            return []
        try:
            place: Place | None = await self._ledger.place(self._job_id)
        except ResponseError as error:
            if not is_withheld(error):
                raise
            self._has_begun = True  # lest Redis note a refusal at each look
            return []
        return self.changes(events, place)
