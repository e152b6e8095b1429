"""Ends the jobs that a Celery client revokes, by the one command of remote control that every worker obeys.

It comes by the channel of Celery's fan-out exchange for remote control, as kombu's Redis transport writes it.
"""

import json
import threading
from collections.abc import Callable, Sequence as Rows
from contextlib import suppress
from time import monotonic
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

import structlog
from pydantic import Base64Bytes, BaseModel, Field, ValidationError
from redis.exceptions import ConnectionError, NoPermissionError, RedisError, ResponseError

from llama_herd.tasks.ledger.answers import Cancellation
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.ledger.redis_call import run_calls
from llama_herd.tasks.protocol.job import is_job_id
from llama_herd.worker.broker.celery_config import has_mailbox
from llama_herd.worker.insisting import Stopped, insist, lasting
from llama_herd.worker.jobs.tenancy import Tenancies, Tenancy

log = structlog.get_logger(__name__)

#: Most jobs that are cancelled in one round trip.
MAX_LOT = 64

#: How soon a stop is noticed.
LISTEN_S = 0.2
#: After this long without a message Redis is asked whether it is there; after twice as long it is not.
SILENCE_S = 5.0
#: Pause before Redis is tried again.
RETRY_S = 0.3

#: How long an answer waits for who asked.
REPLY_TTL_S = 60


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


class Revoker(threading.Thread):
    """Listens where Celery's clients of each tenant send `revoke`, and cancels each job in its ledger.

    So a job ends wherever it waits or runs, and only if it is this tenant's. Celery's own mailbox would obey
    more commands, on the thread that takes messages. This thread reads one message after the other: of a
    flood the rest waits in Redis, which hangs up on a listener that is too slow.
    """

    def __init__(
        self,
        worker: str,
        tenancies: Tenancies,
        on_end: Callable[[], None],
    ) -> None:
        """`on_end` is called when jobs have ended: if no worker had them, Celery is still to be told."""
        super().__init__(name="revoker", daemon=True)
        self._redis = tenancies.redis
        self._worker = worker
        self._by_channel = {self.channel_of(one): one for one in tenancies}
        self._on_end = on_end
        self._is_stopping = threading.Event()

    def channel_of(self, tenancy: Tenancy) -> str:
        """Name the channel of kombu's fan-out exchange; it begins with the number of the database."""
        number = self._redis.connection_pool.connection_kwargs.get("db") or 0
        return f"/{number}.{tenancy.ledger.control_exchange}.pidbox"

    def stop(self) -> None:
        """Ask the thread to stop; returns at once."""
        self._is_stopping.set()

    def run(self) -> None:
        while not self._is_stopping.is_set():
            try:
                self._listen()
            except NoPermissionError:
                fix = "write the rules of its user anew with `herd acl`"
                log.warning("Celery's revoke is not heard", channels=list(self._by_channel), fix=fix)
                return
            except RedisError:
                self._is_stopping.wait(RETRY_S)

    def _listen(self) -> None:
        """Hear revokes until the worker stops. Raises RedisError when the connection is lost."""
        with self._redis.pubsub() as pubsub:  # type: ignore[no-untyped-call]
            pubsub.subscribe(*self._by_channel)
            heard_s = asked_s = monotonic()
            while not self._is_stopping.is_set():
                message = pubsub.get_message(timeout=LISTEN_S)
                if message is not None:
                    heard_s = asked_s = monotonic()
                    self._read(message)
                elif monotonic() - heard_s > 2 * SILENCE_S:
                    raise ConnectionError("Redis is silent")
                elif monotonic() - asked_s > SILENCE_S:
                    asked_s = monotonic()
                    pubsub.ping()

    def _read(self, message: Any) -> None:
        """Obey a message if it is a revoke for this worker; one that is too long is not read."""
        if message["type"] != "message":
            return
        raw: bytes = message["data"]
        tenancy = self._by_channel[message["channel"].decode()]
        if len(raw) > (limit := tenancy.settings.max_message_bytes):
            log.warning("message of remote control not read", num_bytes=len(raw), limit=limit)
            return
        asked = read_revoke(raw)
        if asked is None or not asked.is_for(self._worker):
            return
        job_ids = asked.job_ids
        for start in range(0, len(job_ids), MAX_LOT):
            self._revoke(job_ids[start : start + MAX_LOT], tenancy)
        reply = asked.reply(tenancy.ledger.control_exchange, self._worker)
        if reply is not None and not has_mailbox(tenancy.settings):  # which would answer too
            with suppress(RedisError), self._redis.pipeline(transaction=False) as pipeline:
                pipeline.lpush(*reply)
                pipeline.expire(reply[0], REPLY_TTL_S)
                pipeline.execute()

    def _revoke(self, job_ids: Rows[str], tenancy: Tenancy) -> None:
        """Cancel jobs. They are remembered before: a claim in between looks for its job among them later."""
        tenancy.revoked.add(job_ids)
        answers = zip(job_ids, self._cancelled(job_ids, tenancy.ledger), strict=True)
        known = [job_id for job_id, answer in answers if answer is not Cancellation.UNKNOWN]
        for job_id in known:
            tenancy.revoked.drop(job_id)
        if known:
            self._on_end()

    def _cancelled(self, job_ids: Rows[str], ledger: Ledger) -> Rows[Cancellation | ResponseError]:
        """The answers of the ledger, as soon as Redis gives them; none once the worker stops."""
        calls = [ledger.cancel(job_id, "revoked") for job_id in job_ids]

        def cancel() -> list[Cancellation | ResponseError]:
            return lasting(run_calls(self._redis, calls))

        if not self._is_stopping.is_set():
            with suppress(Stopped):
                return insist(cancel, "a revoke", judge=_judge, pause=self._is_stopping.wait)
        return [Cancellation.UNKNOWN] * len(job_ids)


def _judge(error: Exception) -> None:
    """Judge an error of Redis as worth another try, whatever it is: nobody would send the revoke again."""
    if not isinstance(error, RedisError):
        raise error
