"""Brings a worker process to a known moment and ends it there. Loaded by `celery worker -I`, by tests only.

SABOTAGE=poison         kill -9 as soon as the engine computes a job whose id begins with "poison"
SABOTAGE_STEP_S=0.01    each step of the engine takes that much longer, so that faults meet running jobs
"""

import os
import signal
from collections.abc import Callable
from time import sleep
from typing import Any

from kombu.transport import redis as redis_transport

from llama_herd.tasks.app import app
from llama_herd.worker.delivery import Delivery
from llama_herd.worker.engine import Engine

STEP_S = float(os.environ["SABOTAGE_STEP_S"])
VISIBILITY_S = int(os.environ["SABOTAGE_VISIBILITY_S"])


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


def has_poison(rows: Any) -> bool:
    return any(row.sequence.job_id.startswith("poison") for row in rows)


app.conf.broker_transport_options["visibility_timeout"] = VISIBILITY_S
before(Engine, "step", lambda engine: sleep(STEP_S))
match os.environ.get("SABOTAGE"):
    case "prefill":
        before(Engine, "_draw", lambda engine, rows: die() if rows[0].num_tokens > 1 else None)
    case "poison":
        before(Engine, "_advance", lambda engine, rows, tokens: die() if has_poison(rows) else None)
    case "before_result":
        before(Delivery, "settle", lambda *_: die())
    case "before_ack":
        before(Delivery, "_finish", lambda *_: die())
    case "popped":
        before(redis_transport.QoS, "append", lambda *_: die())
