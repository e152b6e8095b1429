"""Does to its own process what `Sabotage` says. Loaded by `celery worker -I`, never by anything else.

Whatever it is told, a worker with it is killed by each job whose id begins with "poison".
"""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from kombu.transport import redis as kombu_redis

from llama_herd.tasks.app import app
from llama_herd.worker import channel
from llama_herd.worker.chaos.sabotage import Sabotage
from llama_herd.worker.delivery import Delivery
from llama_herd.worker.engine import Engine
from llama_herd.worker.scheduler import Row, Scheduler

#: Soon, so that a run need not wait for kombu's backstop.
RESTORE_INTERVAL_S = 1


def die() -> None:
    """As a lost machine would."""
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: type, name: str, act: Callable[..., None]) -> None:
    """Run `act` with the call's arguments before each call of a method."""
    method = getattr(owner, name)

    def patched(*args: Any, **options: Any) -> Any:
        act(*args, **options)
        return method(*args, **options)

    setattr(owner, name, patched)


def die_of_poison(_: Scheduler, row: Row) -> None:
    if row.sequence.job_id.startswith("poison"):
        die()


def die_in_prefill(_: Scheduler, row: Row) -> None:
    if row.num_tokens > 1:
        die()


def apply(sabotage: Sabotage) -> None:
    app.conf.broker_transport_options.update(
        visibility_timeout=sabotage.visibility_s, unacked_restore_interval=RESTORE_INTERVAL_S
    )
    before(Engine, "step", lambda engine: time.sleep(sabotage.step_s))
    before(Scheduler, "note_computed", die_of_poison)
    match sabotage.dies:
        case "prefill":
            before(Scheduler, "note_computed", die_in_prefill)
        case "before_result":
            before(Delivery, "settle", lambda *_: die())
        case "before_ack":
            before(Delivery, "_finish", lambda *_: die())
        case "popped":
            before(kombu_redis.QoS, "append", lambda *_: die())
    if sabotage.clock_s:
        shift_clock(sabotage.clock_s)


def shift_clock(clock_s: float) -> None:
    """What tells messages' ages and expiry here goes by a clock that is wrong."""
    true_time = time.time
    time.time = lambda: true_time() + clock_s
    for module in (kombu_redis, channel):
        vars(module)["time"] = time.time


apply(Sabotage())
