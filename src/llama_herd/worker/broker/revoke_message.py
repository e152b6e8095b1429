"""Celery's message that revokes tasks: the one command of its remote control that every worker obeys.

It comes by the channel of Celery's fan-out exchange for remote control, as kombu's Redis transport writes it.
"""

import json
from typing import Annotated, Literal
from uuid import UUID, uuid4

from pydantic import Base64Bytes, BaseModel, Field, ValidationError

from llama_herd.tasks.protocol.job import is_job_id


class _Fanout(BaseModel):
    body: Base64Bytes
    content_type: Literal["application/json"] = Field(alias="content-type")


class _Arguments(BaseModel):
    task_id: str | list[str]


class _ReplyTo(BaseModel):
    routing_key: Annotated[UUID, Field(strict=False)]


class RevokeMessage(BaseModel):
    """Which tasks to revoke. `revoke` and `terminate` mean the same: to end a generation kills no process."""

    method: Literal["revoke", "terminate"]
    arguments: _Arguments
    destination: list[str] | None = None
    reply_to: _ReplyTo | None = None
    ticket: str | None = None

    @property
    def job_ids(self) -> list[str]:
        """The ids that can name jobs, each once."""
        given = self.arguments.task_id
        return list(dict.fromkeys(filter(is_job_id, [given] if isinstance(given, str) else given)))

    def is_for(self, worker: str) -> bool:
        """Whether this worker is to obey: no destination means every worker."""
        return not self.destination or worker in self.destination

    def reply(self, exchange: str, worker: str) -> tuple[str, str] | None:
        """The list where the sender waits for an answer, and the answer; None if it waits for none.

        The list's name is made here: a sender that chose it could have a worker write into any queue.
        """
        if self.reply_to is None or self.ticket is None:
            return None
        place = {"exchange": f"reply.{exchange}.pidbox", "routing_key": str(self.reply_to.routing_key)}
        answer = {worker: {"ok": f"{len(self.job_ids)} tasks flagged as revoked"}}
        message = {
            "body": json.dumps(answer),
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": {"ticket": self.ticket},
            "properties": {
                "delivery_mode": 1,
                "delivery_tag": str(uuid4()),
                "delivery_info": place,
                "priority": 0,
            },
        }
        return f"{place['routing_key']}.{place['exchange']}", json.dumps(message)


def read_revoke(raw: bytes) -> RevokeMessage | None:
    """Parse a message of remote control. None if it is any other command, or no message at all."""
    try:
        return RevokeMessage.model_validate_json(_Fanout.model_validate_json(raw).body)
    except ValidationError:
        return None
