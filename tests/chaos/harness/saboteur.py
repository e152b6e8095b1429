"""Does to its own process what `Sabotage` says. Loaded only by `celery worker -I`.

In any case a worker with it is killed by each job whose id begins with one of `POISONS`.
"""

import os
import signal
import time
from collections.abc import Callable, Sequence as Rows
from importlib import import_module
from typing import Any

from kombu.transport import redis as kombu_redis

from llama_herd.tasks.ledger.held_jobs import EmitEntry
from llama_herd.worker.broker.delivery import Delivery
from llama_herd.worker.broker.held_messages import QoS
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.runner import Row
from llama_herd.worker.engine.scheduler import Scheduler
from llama_herd.worker.jobs import lost_messages
from llama_herd.worker.jobs.attempt import Attempt
from llama_herd.worker.jobs.publisher import Publisher
from llama_herd.worker.jobs.warm_up import NOBODY
from llama_herd.worker.loading.sequence_maker import SequenceMaker
from tests.chaos.harness import stand_in
from tests.chaos.harness.sabotage import Poison, Sabotage


def die() -> None:
    """End at once, as if the machine was lost."""
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: type, name: str, act: Callable[..., None]) -> None:
    """Run `act` with the call's arguments before each call of a method."""
    method = getattr(owner, name)

    def patched(*args: Any, **options: Any) -> Any:
        act(*args, **options)
        return method(*args, **options)

    setattr(owner, name, patched)


def die_of(poison: Poison, job_id: str) -> None:
    if job_id.startswith(poison):
        die()


def die_of_preparing(_: SequenceMaker, job_id: str, *__: Any, **___: Any) -> None:
    die_of("poison-prepare", job_id)


def die_of_computing(_: Engine, rows: Rows[Row]) -> None:
    for row in rows:
        die_of("poison-forward", row.sequence.job_id)


def die_of_a_token(_: Publisher, attempt: Attempt, entry: EmitEntry) -> None:
    if entry.kind == "token":
        die_of("poison-token", attempt.job_id)


def die_in_prefill(_: Scheduler, row: Row) -> None:
    """Not while the worker warms up: then it has no job yet."""
    if row.num_tokens > 1 and row.sequence.tenant != NOBODY:
        die()


def apply(sabotage: Sabotage) -> None:
    """Patch this process so that it does what the sabotage says."""
    lost_messages.SILENT_S = sabotage.silent_s
    before(Engine, "step", lambda _: time.sleep(sabotage.step_s))
    before(SequenceMaker, "sequences", die_of_preparing)
    before(Engine, "_compute", die_of_computing)
    before(Publisher, "_note_written", die_of_a_token)
    match sabotage.dies:
        case "prefill":
            before(Scheduler, "note_computed", die_in_prefill)
        case "before_result":
            before(Delivery, "settle", lambda *_, **__: die())
        case "before_ack":
            before(Delivery, "_finish", lambda *_: die())
        case "popped":
            before(QoS, "append", lambda *_: die())
    if sabotage.stand_in:
        stand_in.serve_no_model()
    if sabotage.clock_s:
        shift_clock(sabotage.clock_s)
    if sabotage.held_by:
        os.environ["STANDSTILL"] = sabotage.held_by
        import_module("tests.worker.standstill")


def shift_clock(clock_s: float) -> None:
    """Make kombu and Celery use a wrong clock for the ages and expiry of messages."""
    true_time = time.time
    time.time = lambda: true_time() + clock_s
    vars(kombu_redis)["time"] = time.time


apply(Sabotage())
