"""Celery's worker in this process, with our own facts in place of its banner."""

import os
import sys
import warnings
from typing import Any, Literal

import structlog
from celery import signals
from celery.bin.celery import celery
from celery.exceptions import SecurityWarning
from click.exceptions import Abort

from llama_herd.tasks.connection import connect, masked, redis_errors
from llama_herd.worker.local.environment import override
from llama_herd.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)

APP = "llama_herd.tasks.app"

#: The exit code of a command that Ctrl-C ends: 128 + SIGINT.
EXIT_INTERRUPTED = 130


def run_celery_worker(settings: WorkerSettings, name: str | None) -> int:
    """Run a worker to its end and return its exit code. Raises RedisUnavailable."""
    with connect(settings.redis_url) as redis, redis_errors(settings.redis_url):
        redis.ping()
    override(log_format=log_format_here(settings))
    # Celery warns about root because of pickles, which are refused here. In containers root is common.
    warnings.filterwarnings("ignore", category=SecurityWarning)

    def announce(sender: Any, **_: Any) -> None:
        facts = _facts(settings, sender.pool.info["engine"])
        if sys.stderr.isatty():
            print("\n".join(["herd worker", *(f"  {n:<15} {v}" for n, v in facts.items())]), file=sys.stderr)
        else:
            log.info("worker ready", **facts)

    signals.worker_ready.connect(announce, weak=False)
    node = f"{name or f'herd-{os.getpid()}'}@%h"
    command = ["--app", APP, "--quiet", "worker", "--without-gossip", "--without-mingle"]
    try:
        code = celery.main([*command, "--loglevel", "INFO", "--hostname", node], standalone_mode=False)
    except Abort:  # Ctrl-C before Celery handles it
        return EXIT_INTERRUPTED
    return int(code or 0)


def log_format_here(settings: WorkerSettings) -> Literal["json", "console"]:
    """How this process logs: as it is set; by default, for people if it writes to a terminal."""
    if "log_format" not in settings.model_fields_set and sys.stderr.isatty():
        return "console"
    return settings.log_format


def _facts(settings: WorkerSettings, status: dict[str, Any]) -> dict[str, Any]:
    """What a person wants to know about a new worker, the most important first."""
    return {
        "name": status["name"],
        "model": status["model"],
        "device": status["device"],
        "slots": status["slots"],
        "kv_cache_tokens": status["kv_cache_tokens"],
        "queue": ", ".join(settings.by_queue),
        "redis": masked(settings.redis_url),
    }
