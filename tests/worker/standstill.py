"""Stops a part of a worker while a file of that name is there. Loaded by `celery worker -I`, by tests only.

STANDSTILL=folder    `engine` in it holds up the next step and who is admitted, or the first after as many
                     tokens as it says;
                     `consumer` holds up the next look for messages, and the answer to the last;
                     `crash` makes the next step of a batch fail, `load` holds up the model,
                     and with `swallow` goes on with it whatever a signal raises there;
                     `finisher` holds up the next results
STANDSTILL_RATE=1/m  Celery's rate limit
STANDSTILL_STEP_S=n  how long each step lasts at least, so that jobs may last and cost little
"""

import os
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from time import sleep

from llama_herd.tasks.generate import generate
from llama_herd.tasks.protocol.result import Result
from llama_herd.worker.broker.delivery import Delivery
from llama_herd.worker.broker.queue_channel import QueueChannel
from llama_herd.worker.broker.result_backend import ResultValue
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

FOLDER = Path(os.environ["STANDSTILL"])
STEP_S = float(os.environ.get("STANDSTILL_STEP_S", "0"))

admit, step = Engine.admit, Engine.step
ask, hear = QueueChannel._brpop_start, QueueChannel._brpop_read
load, settle = LoadedModel.load, Delivery.settle


def admit_unless_held(self: Engine) -> None:
    while is_held(self):
        sleep(0.01)
    admit(self)


def step_unless_held(self: Engine) -> None:
    while is_held(self):
        sleep(0.01)
    if self.scheduler.running and (FOLDER / "crash").exists():
        (FOLDER / "crash").unlink()
        raise RuntimeError("a bug")
    step(self)
    sleep(STEP_S)


def is_held(engine: Engine) -> bool:
    try:
        least = int((FOLDER / "engine").read_text() or 0)
    except FileNotFoundError:
        return False
    return not least or any(len(one.ids) >= least for one in engine.scheduler.running)


def ask_unless_held(channel: QueueChannel, timeout: float | None = None) -> None:
    if not (FOLDER / "consumer").exists():
        ask(channel, timeout)


def hear_unless_held(channel: QueueChannel) -> bool:
    if not (FOLDER / "consumer").exists():
        return bool(hear(channel))
    sleep(0.01)
    raise Empty


def load_unless_held(
    settings: WorkerSettings, device: str, on_progress: Callable[[int, int], None]
) -> LoadedModel:
    try:
        (FOLDER / "loading").touch()
        while (FOLDER / "load").exists():
            sleep(0.01)
    except SystemExit:  # as one raised in an import or in a finalizer may be
        if not (FOLDER / "swallow").exists():
            raise
    return load(settings, device, on_progress)


def settle_unless_held(
    delivery: Delivery, outcome: Result, *life_s: int | None, **options: bool
) -> ResultValue:
    while (FOLDER / "finisher").exists():
        sleep(0.01)
    return settle(delivery, outcome, *life_s, **options)


generate.rate_limit = os.environ.get("STANDSTILL_RATE")
Engine.admit = admit_unless_held  # type: ignore[method-assign]
Engine.step = step_unless_held  # type: ignore[method-assign]
QueueChannel._brpop_start = ask_unless_held  # type: ignore[method-assign, assignment]
QueueChannel._brpop_read = hear_unless_held  # type: ignore[method-assign, assignment]
LoadedModel.load = load_unless_held  # type: ignore[method-assign, assignment]
Delivery.settle = settle_unless_held  # type: ignore[method-assign, assignment]
