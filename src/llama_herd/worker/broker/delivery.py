"""One Celery message in this worker's hands, from `on_apply` to its ack; and what is owed after that."""

import os
from base64 import b64decode
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from celery import Celery
from celery.worker.request import Request
from celery.worker.state import task_ready
from kombu.transport.virtual import QoS

from llama_herd.errors import GenerationError
from llama_herd.tasks.generate import run_tracer, store_failure, store_started
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.protocol.message import job_task_of, trace_id_of
from llama_herd.tasks.protocol.result import Result
from llama_herd.worker.broker.message_json import UnreadableJson, read_json
from llama_herd.worker.broker.request import ENDED
from llama_herd.worker.broker.result_backend import ResultValue, is_remote, settling
from llama_herd.worker.broker.task_message import TaskMessage
from llama_herd.worker.engine.interface import Abort

#: Runs a callable on the hub's thread: everything that touches a Celery request must.
CallSoon = Callable[..., None]


class Delivery:
    """A message and how to settle it. To Celery it is the pool's result object, which it may `terminate`.

    Exactly one of these is called: `settle` and then `close` (the job is over), `acknowledge` (another
    delivery of the job is settled) or `let_go` (the message belongs to another worker now).
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        request: Request,
        call_soon: CallSoon,
        time_limit_s: float | None = None,
    ) -> None:
        """Make a delivery. time_limit_s: how long the job may take once it is admitted; None: no limit."""
        self._args = args
        self._request = request  # touch it on the hub's thread only
        self._call_soon = call_soon
        self._accepted_s: float | None = None
        self._traced: tuple[int, Any, float] | None = None  # of a settled job that was not revoked
        self.message = TaskMessage()  # what the body asks for; nothing until it is read
        self.time_limit_s = time_limit_s

    @property
    def job_id(self) -> str:
        return str(self._request.id)

    @property
    def queue(self) -> str:
        """The queue that the message came from."""
        return str(self._request.delivery_info["routing_key"])

    @property
    def headers(self) -> Mapping[str, Any]:
        """The message's headers and properties as Celery's request dictionary."""
        headers: Mapping[str, Any] = self._args[2]
        return headers

    @property
    def body(self) -> bytes | str:
        """The message's body as it came, unparsed."""
        body: bytes | str = self._args[3]
        return body

    @property
    def trace_id(self) -> str | None:
        """The id of the sender's trace, if the message names one."""
        return trace_id_of(self.headers)

    @property
    def ended_by_celery(self) -> Abort | None:
        """How the job is to end if Celery has found it revoked or expired."""
        reason = self.headers.get(ENDED)
        return None if reason is None else "deadline" if reason == "expired" else "cancelled"

    @property
    def start(self) -> RedisCall[None] | None:
        """The call that sets the job's state to STARTED for Celery's clients; None: nobody wants it.

        It goes to Redis beside the job's first event, so not where results have a Redis of their own.
        """
        backend = self._request.task.backend
        if self.headers.get("ignore_result") or is_remote(backend):
            return None
        return store_started(self.job_id, self._request.hostname, backend)

    def accept(self) -> None:
        """Tell Celery's worker that the job runs now."""
        self._accepted_s = monotonic()
        self._call_soon(self._announce)

    def settle(
        self, outcome: Result, life_s: int | None = None, *, has_sent_links: bool = False
    ) -> ResultValue:
        """Run Celery's own tracer for the finished job: result, links, chains and signals.

        life_s: how long the result is kept; None: as Celery's app says. has_sent_links: links and chains are
        left out. Runs on a finisher thread, since the result backend answers over the network. Returns what
        is still to be stored; once it is, `close` is called.
        """
        embed = _without_links(self.message.embed) if has_sent_links else self.message.embed
        with settling(self.job_id, life_s) as now:
            failed, value = run_tracer(self._request.task, self.headers, embed, outcome)
        if outcome.finish_reason != "cancelled":
            self._traced = failed, value, monotonic() - (self._accepted_s or monotonic())
        return now.result

    def close(self) -> None:
        """Ack the message of a job that is settled."""
        self._call_soon(self._finish)

    def fail(self, error: GenerationError) -> None:
        """Store an error in place of the job's result, without links and chord; `acknowledge` it then."""
        if not self.headers.get("ignore_result"):
            store_failure(self.job_id, error, self._request.task.backend)

    def acknowledge(self) -> None:
        """Ack the message without a result: another delivery settles the job."""
        self._call_soon(task_ready, self._request)
        self._call_soon(self._request.acknowledge)

    def let_go(self) -> None:
        """Forget the message here, and tell the broker nothing.

        As long as it is noted as held, it comes again, to whoever has the job by then. Where Redis has lost
        its last writes, it may be all that is left of the job.
        """
        self._call_soon(task_ready, self._request)
        self._call_soon(self._free_slot)

    def terminate(self, signum: int) -> None:
        """Do nothing: a signal tells the intake of a revoke, and a cold shutdown drains the pool."""

    def _announce(self) -> None:
        """Announce the start, once: the hub runs callbacks in any order, so the first one does it."""
        if self._accepted_s is not None and not self._request.time_start:
            self._request.on_accepted(os.getpid(), self._accepted_s)

    def _finish(self) -> None:
        if self._request.acknowledged:
            return
        if self._traced is not None:
            self._announce()
            self._request.on_success(self._traced)
        else:  # Celery itself would announce a success
            task_ready(self._request)
            self._request.acknowledge()
            self._request.send_event("task-revoked", terminated=True, signum=None, expired=False)

    def _free_slot(self) -> None:
        message = self._request.message
        qos = message.channel.qos
        if message.delivery_tag in qos._delivered:
            QoS.ack(qos, message.delivery_tag)
        self._request.acknowledged = True


class Debt:
    """An ended job of which Celery is still to be told, though no worker has its message."""

    def __init__(self, app: Celery, job_id: str, envelope: bytes) -> None:
        """`envelope`: the message in the job's record, which has its links; empty: none."""
        self.job_id = job_id
        self._headers, self._embed = _read_envelope(job_id, envelope)
        self._task = app.tasks[job_task_of(self._headers)]

    @property
    def trace_id(self) -> str | None:
        """The id of the sender's trace, if the message names one."""
        return trace_id_of(self._headers)

    def settle(
        self, outcome: Result, life_s: int | None = None, *, has_sent_links: bool = False
    ) -> ResultValue:
        """Run Celery's own tracer, as `Delivery.settle` does."""
        embed = _without_links(self._embed) if has_sent_links else self._embed
        with settling(self.job_id, life_s) as now:
            run_tracer(self._task, self._headers, embed, outcome)
        return now.result

    def close(self) -> None:
        """Do nothing: there is no message here."""

    def fail(self, error: GenerationError) -> None:
        """Store an error in place of the job's result, without links and chord."""
        if not self._headers.get("ignore_result"):
            store_failure(self.job_id, error, self._task.backend)

    def acknowledge(self) -> None:
        """Do nothing: a message that still comes finds the job settled."""


def _read_envelope(job_id: str, envelope: bytes) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Headers as Celery's request dictionary, and links. What others have written there counts as nothing."""
    headers, embed, place = dict[str, Any](), None, dict[str, Any]()
    try:
        match read_json(envelope):
            case {"headers": dict(headers), "properties": {"delivery_info": dict(place)}, "body": str(body)}:
                _, _, embed = read_json(b64decode(body))
    except (UnreadableJson, ValueError, TypeError):
        pass
    return {**headers, "id": job_id, "delivery_info": place}, embed if isinstance(embed, dict) else None


def _without_links(embed: dict[str, Any] | None) -> dict[str, Any]:
    return {**(embed or {}), "callbacks": None, "chain": None}
