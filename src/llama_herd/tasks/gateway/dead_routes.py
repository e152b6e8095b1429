"""What is dead, over HTTP and for operators: messages that nobody could read, and jobs that were given up.

A message may hold a prompt.
"""

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.responses import Response

from llama_herd.tasks.client.dead_items import DeadItems
from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.long_answers import make_aside
from llama_herd.tasks.gateway.problem import not_found
from llama_herd.tasks.gateway.queries import limit_of
from llama_herd.tasks.ledger.answers import DeadJob, DeadLetter
from llama_herd.tasks.ledger.dead_letters import MAX_LETTERS
from llama_herd.tasks.protocol.job import is_job_id

#: Entries of a list that does not say how many.
LIMIT = 100


class DeadItem(BaseModel):
    """A message that nobody could read, or a job that was given up."""

    name: str = Field(description="Number of the letter, or id of the job.")
    kind: Literal["letter", "job"] = Field(description="`letter`: a message. `job`: a poisoned job.")
    at_ms: int = Field(description="When it was put here, in unix milliseconds.")
    reason: str = Field(description="Why it is here.")
    worker: str | None = Field(description="The worker that put it here, or had the job last.")
    queue: str = Field(description="The queue that it came from.")
    attempts: int | None = Field(default=None, description="How often the job was started.")
    num_bytes: int | None = Field(default=None, description="Length of the message.")
    task_id: str | None = Field(default=None, description="Celery's id in the message, if it can be found.")
    task: str | None = Field(default=None, description="Name of the task in the message.")
    origin: str | None = Field(default=None, description="The process that sent the message.")


class DeadList(BaseModel):
    """What is dead, the newest first."""

    object: Literal["list"] = Field(default="list", description="A list.")
    data: list[DeadItem] = Field(description="At most as many as were asked for.")


class Letter(DeadItem):
    """A message that nobody could read, with all that is kept of it."""

    body: str = Field(description="The message; what is no UTF-8 in it is replaced.")
    is_whole: bool = Field(description="Whether all of it is kept: only then it can be sent again.")


class Revived(BaseModel):
    """What was dead and runs again."""

    name: str = Field(description="Its name.")
    id: str | None = Field(description="Id of the new job; null for a letter, which is in its queue again.")
    queue: str = Field(description="The queue that it went to.")


def _facts(one: DeadJob | DeadLetter) -> Iterator[tuple[str, Any]]:
    """The fields of a DeadItem that this has."""
    own = {name: getattr(one, name) for name in DeadItem.model_fields if hasattr(one, name)}
    is_job = isinstance(one, DeadJob)
    yield from own.items()
    yield "name", one.job_id if isinstance(one, DeadJob) else one.number
    yield "kind", "job" if is_job else "letter"


async def list_dead(call: Call) -> DeadList:
    """Messages that nobody could read, and jobs that were given up, the newest first."""
    found = await call.queue.run(_dead(call).list(limit_of(call, LIMIT, MAX_LETTERS)))
    return DeadList(data=[DeadItem(**dict(_facts(one))) for one in found])


async def get_letter(call: Call) -> Response:
    """A message that nobody could read. It may hold a prompt."""
    letter = await call.queue.run(_dead(call).letter(call.path_params["name"]))
    if letter is None:
        raise not_found("there is no such letter. Of a job tells /v1/jobs/{id}")

    def make() -> str:
        body = letter.raw.decode(errors="replace")
        return Letter(**dict(_facts(letter)), body=body, is_whole=letter.is_whole).model_dump_json()

    return Response(await make_aside(make), media_type="application/json")


async def revive_dead(call: Call) -> Revived:
    """Push a message back to its queue, or run a job that was given up again, under a new id."""
    name = await _dead_name(call)
    job_id, queue = await call.queue.run(_dead(call).retry(name, call.caller.check_priority))
    return Revived(name=name, id=job_id, queue=queue)


async def drop_dead(call: Call) -> None:
    """Forget a message, or purge a job that was given up."""
    await call.queue.run(_dead(call).drop(await _dead_name(call), call.queue.core.queue))


def _dead(call: Call) -> DeadItems:
    return call.queue.core.dead


async def _dead_name(call: Call) -> str:
    """The name in the path. Raises Problem unless it is dead: no other job may be purged by its id here."""
    name: str = call.path_params["name"]
    run, dead = call.queue.run, _dead(call)
    if await run(dead.letter(name)) is None and not (
        is_job_id(name) and await run(dead.letters.is_quarantined(name))
    ):
        raise not_found("nothing dead has this name: see /v1/dead")
    return name
