"""The worker's process: its settings, its device, and its end when it cannot go on."""

import logging
import os
import threading
from functools import cache
from typing import NoReturn

import structlog

from llama_herd.errors import DeviceLost
from llama_herd.tasks.connection.redis_url import celery_url, is_sentinel
from llama_herd.worker.loading.device import begin_anew, on_device, pin_device
from llama_herd.worker.loading.hub_model import with_model_here
from llama_herd.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)

#: Exit code of a worker that lost a thread.
EXIT_THREAD_DIED = 70
#: Exit code of a worker that no longer took messages.
EXIT_SILENT = 71
#: Exit code of a worker with a part that no longer made progress.
EXIT_STUCK = 72
#: Exit code of a worker whose GPU answers no more.
EXIT_DEVICE_LOST = 73


@cache
def own_settings() -> WorkerSettings:
    """Read the process's settings once, with the device that it takes and the file of its model.

    Raises BadInput, or HubUnavailable.
    """
    settings = WorkerSettings.read()
    settings.check_served_model()
    return with_model_here(on_device(settings))


def has_sentinels() -> bool:
    """Whether Sentinels say where Redis is."""
    return is_sentinel(own_settings().redis_url)


def broker_urls() -> list[str]:
    """Celery's addresses of the Redis, or one each of its Sentinels."""
    return celery_url(own_settings().redis_url).split(";")


@cache
def device() -> str:
    """torch's name of this process's device, the only one that torch sees."""
    return pin_device(own_settings().device)


def end_process(failure: threading.ExceptHookArgs) -> None:
    """End a worker that has lost one of its threads: without it, jobs would stay here for ever."""
    if isinstance(failure.exc_value, DeviceLost):
        end_without_device(failure.exc_value)
    details = (failure.exc_type, failure.exc_value, failure.exc_traceback)
    log.critical(
        "thread died, ending the worker", thread=getattr(failure.thread, "name", "?"), exc_info=details
    )
    end_at_once(EXIT_THREAD_DIED)


def end_without_device(error: DeviceLost) -> NoReturn:
    """End a worker whose GPU is lost. What it has recorded stays; other workers go on from there."""
    log.critical("the GPU is lost, ending the worker", device=own_settings().device, reason=str(error))
    end_at_once(EXIT_DEVICE_LOST)


def end_or_begin_anew(error: DeviceLost) -> NoReturn:
    """Begin once more without Triton's kernels, one of which may have lost the GPU at the start.

    A worker that does without them already ends.
    """
    if own_settings().triton == "off":
        end_without_device(error)
    log.error("the GPU was lost at the start, starting again with HERD_TRITON=off", reason=str(error))
    logging.shutdown()
    begin_anew(HERD_TRITON="off")


def end_at_once(exit_code: int) -> NoReturn:
    """End like kill -9, but flush the log first. Jobs in hand go to other workers when their leases end."""
    logging.shutdown()
    os._exit(exit_code)
