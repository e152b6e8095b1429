"""Celery's worker in this process, without its banner: the pool tells what one wants to know."""

import os
import warnings

from celery.bin.celery import celery
from celery.exceptions import SecurityWarning
from click.exceptions import Abort

from llama_herd.tasks.connection.connect import connect, redis_errors
from llama_herd.worker.settings import WorkerSettings

APP = "llama_herd.tasks.app"

#: The exit code of a command that Ctrl-C ends: 128 + SIGINT.
EXIT_INTERRUPTED = 130


def run_celery_worker(settings: WorkerSettings, name: str | None, *, waits: bool = False) -> int:
    """Run a worker to its end and return its exit code.

    waits: whether it waits for a Redis that is away; else RedisUnavailable is raised.
    """
    if not waits:
        with connect(settings.redis_url) as redis, redis_errors(settings.redis_url):
            redis.ping()
    # Celery warns about root because of pickles, which are refused here. In containers root is common.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    node = f"{name or f'herd-{os.getpid()}'}@%h"
    command = ["--app", APP, "--quiet", "worker", "--without-gossip", "--without-mingle"]
    try:
        code = celery.main([*command, "--loglevel", "INFO", "--hostname", node], standalone_mode=False)
    except Abort:  # Ctrl-C before Celery handles it
        return EXIT_INTERRUPTED
    return int(code or 0)
