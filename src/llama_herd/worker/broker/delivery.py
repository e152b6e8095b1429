"""One Celery message in this worker's hands, from the pool's `on_apply` to its ack."""

import os
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from celery.worker.request import Request
from celery.worker.state import task_ready
from kombu.transport.virtual import QoS

from llama_herd.errors import GenerationError
from llama_herd.tasks.generate import correct_state, run_tracer, store_failure, store_started
from llama_herd.tasks.ledger.redis_call import RedisCall
from llama_herd.tasks.protocol.message import trace_id_of
from llama_herd.tasks.protocol.result import Result
from llama_herd.worker.broker.result_backend import results_live
from llama_herd.worker.broker.task_message import TaskMessage

#: Runs a callable on the hub's thread: everything that touches a Celery request must.
CallSoon = Callable[..., None]


class Delivery:
    """A message and how to settle it. To Celery it is the pool's result object, which it may `terminate`.

    Exactly one of these is called: `settle` (the job is over), `acknowledge` (another delivery of the job is
    settled) or `let_go` (the message belongs to another worker now).
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
    def is_revoked(self) -> bool:
        """Whether Celery has ended, announced and acked the task by itself."""
        return bool(self._request._already_revoked)

    @property
    def start(self) -> RedisCall[None] | None:
        """The call that sets the job's state to STARTED for Celery's clients; None: they want no result."""
        if self.headers.get("ignore_result"):
            return None
        return store_started(self.job_id, self._request.hostname, self._request.task.backend)

    def accept(self) -> None:
        """Tell Celery's worker that the job runs now."""
        self._accepted_s = monotonic()
        self._call_soon(self._announce)

    def settle(self, outcome: Result, life_s: int | None = None) -> None:
        """Run Celery's own tracer for the finished job: result, links, chains and signals, then the ack.

        life_s: how long the result is kept; None: as Celery's app says.
        Runs on a finisher thread, since the result backend answers over the network. If Celery has ended the
        task by itself, only its stored outcome is corrected.
        """
        if self.is_revoked:
            correct_state(outcome, self._request.task.backend)
            return
        with results_live(life_s):
            failed, value = run_tracer(self._request.task, self.headers, self.message.embed, outcome)
        if outcome.finish_reason == "cancelled":
            self._call_soon(self._finish_revoked)
            return
        runtime_s = monotonic() - (self._accepted_s or monotonic())
        self._call_soon(self._finish, (failed, value, runtime_s))

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

        A redelivered message keeps its delivery tag. So an ack or a reject from here would take it away from
        the job's new owner.
        """
        self._call_soon(task_ready, self._request)
        self._call_soon(self._free_slot)

    def terminate(self, signum: int) -> None:
        """Do nothing: a signal tells the intake of a revoke, and a cold shutdown drains the pool."""

    def _announce(self) -> None:
        """Announce the start, once: the hub runs callbacks in any order, so the first one does it."""
        if self._accepted_s is not None and not self._request.time_start:
            self._request.on_accepted(os.getpid(), self._accepted_s)

    def _finish(self, traced: tuple[int, Any, float]) -> None:
        if not self._request.acknowledged:
            self._announce()
            self._request.on_success(traced)

    def _finish_revoked(self) -> None:
        """Store the final state of a task that Celery has revoked: Celery itself would announce a success."""
        if not self._request.acknowledged:
            task_ready(self._request)
            self._request.acknowledge()
            self._request.send_event("task-revoked", terminated=True, signum=None, expired=False)

    def _free_slot(self) -> None:
        message = self._request.message
        qos = message.channel.qos
        if message.delivery_tag in qos._delivered:
            QoS.ack(qos, message.delivery_tag)
        self._request.acknowledged = True
