"""The start of a worker: Redis is asked, the model loaded and warmed up, and said what came of it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING

import structlog
from redis import Redis
from redis.exceptions import RedisError

from llama_herd.errors import DeviceError
from llama_herd.tasks.connection.connect import connect
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.reports import Reports
from llama_herd.tasks.protocol.worker_status import WorkerState, WorkerStatus
from llama_herd.worker import process
from llama_herd.worker.foreign.model import ForeignModel
from llama_herd.worker.health import WorkerHealth
from llama_herd.worker.jobs.redis_check import wait_for_usable_redis
from llama_herd.worker.jobs.service import REDIS_TIMEOUT_S, Service
from llama_herd.worker.loading.device import pinned_card, visible_cards
from llama_herd.worker.loading.machine import complaint_of_threads, num_threads, openmp_runtimes
from llama_herd.worker.loading.neighbours import take_card
from llama_herd.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from llama_herd.worker.loading.loaded_model import LoadedModel

log = structlog.get_logger(__name__)

#: How often users are told that the worker loads.
INTERVAL_S = 1.0


def start_service(settings: WorkerSettings, worker: str, health: WorkerHealth) -> Service:
    """Load the model and warm it up, then start all threads. `health` is told how far it is.

    Raises BadInput when Redis or the model cannot be used.
    """
    start = _start_foreign if settings.is_foreign else _start_own
    with connect(settings.redis_url, tries=0, timeout_s=REDIS_TIMEOUT_S) as redis:
        health.waits_for_redis = True
        wait_for_usable_redis(redis, settings)
        health.waits_for_redis = False
        service = start(redis, settings, worker, health)
    service.start_threads()
    health.service = service
    return service


def _start_own(redis: Redis, settings: WorkerSettings, worker: str, health: WorkerHealth) -> Service:
    """Load a model onto this process's device, and start its engine."""
    from llama_herd.worker.loading.loaded_model import LoadedModel  # with torch

    if settings.device != "cpu":
        take_card(pinned_card(), worker, is_shared=settings.memory_share < 1)
    started_s = monotonic()
    with loading_report(redis, settings, worker, health) as note_bytes:
        model = LoadedModel.load(settings, process.device(), note_bytes)
        loaded_s = monotonic()
        service = Service(model, settings, worker)
        service.start_engine()
    log.info(
        "model loaded",
        model=settings.served_model,
        device=settings.device,
        dtype=model.plan.dtype,
        weights=model.plan.form_note,
        kernels=model.plan.form.kernels.note,
        steps=model.steps_note,
        threads=num_threads(settings),
        seconds=round(loaded_s - started_s, 3),
        weights_s=round(model.weights_s, 3),
        warm_up_s=round(monotonic() - loaded_s, 3),
    )
    _complain(settings, model)
    return service


def _start_foreign(redis: Redis, settings: WorkerSettings, worker: str, health: WorkerHealth) -> Service:
    """Wait for the server that computes, and start the engine that asks it."""
    with loading_report(redis, settings, worker, health, "away"):
        model = ForeignModel.load(settings)
        service = Service(model, settings, worker)
        service.start_engine()
    log.info("engine's server found", url=settings.engine_url, **model.served.told)
    return service


def _complain(settings: WorkerSettings, model: "LoadedModel") -> None:
    """Log what makes this worker slower than it need be."""
    if settings.device == "cpu" and "Fix: " in (note := model.plan.form.kernels.note):
        log.warning("native kernels are missing or old, steps are several times slower", reason=note)
    if complaint := complaint_of_threads(settings):
        log.warning("fewer threads than set", reason=complaint, fix="leave HERD_THREADS out")
    if len(runtimes := openmp_runtimes()) > 1:
        note = "torch keeps to its own, native kernels have threads without OpenMP: results are the same"
        log.info("several OpenMP runtimes are loaded", runtimes=runtimes, note=note)
    with suppress(DeviceError):
        if settings.device == "cpu" and (cards := visible_cards()):
            fix = "leave HERD_DEVICE out, with a torch that is built for CUDA"
            log.warning("a GPU stays idle, this worker runs on the CPU", gpus=cards, fix=fix)


@contextmanager
def loading_report(
    redis: Redis,
    settings: WorkerSettings,
    worker: str,
    health: WorkerHealth,
    state: WorkerState = "loading",
) -> Iterator[Callable[[int, int], None]]:
    """Report `state` once a second to each tenant, and by `health`, until the block ends. Then heartbeats do.

    with loading_report(redis, settings, "gpu0@host", WorkerHealth()) as note_bytes:
        LoadedModel.load(settings, device, note_bytes)
    """
    has_ended, health.phase = threading.Event(), state

    def note_bytes(num_done: int, num_bytes: int) -> None:
        health.loaded_percent = 100 * num_done // num_bytes

    def report() -> None:
        while not has_ended.wait(INTERVAL_S):  # a model that is refused at once is never reported
            status = WorkerStatus(
                name=worker,
                state=state,
                loaded_percent=health.loaded_percent,
                model=settings.served_model,
                device=settings.device,
                slots=settings.slots,
            )
            for own in settings.by_queue.values():
                with suppress(RedisError):  # the next report comes soon
                    run_call(redis, Reports(own.tenant).report_worker(status))

    thread = threading.Thread(target=report, name="loading report", daemon=True)
    thread.start()
    try:
        yield note_bytes
    finally:
        has_ended.set()
        thread.join()  # so that the last report cannot overwrite a later one of the heartbeat
