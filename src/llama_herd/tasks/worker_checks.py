"""Checks before our Celery worker starts: one line and exit code 2 now, instead of lost jobs later."""

import sys
from typing import Any, NoReturn

import click
from click.core import ParameterSource
from kombu import compression
from kombu.exceptions import ContentDisallowed

from llama_herd.errors import SettingsError
from llama_herd.tasks.redis_url import is_same_redis, masked
from llama_herd.tasks.secret_files import warn_of_exposed_files
from llama_herd.tasks.settings import Settings


def refuse_settings(error: SettingsError, app: str) -> NoReturn:
    """End `celery -A <app>` with one line instead of a traceback. Others who import the app get the error."""
    context = click.get_current_context(silent=True)
    named = context.params.get("app") if context is not None else None
    if isinstance(named, str) and named.partition(":")[0] == app:
        _exit(str(error))
    raise error


def check_worker_start(conf: Any, settings: Settings) -> None:
    """Refuse to start with settings that cannot work, and switch decompression off."""
    _check_pool()
    for name in ("broker_read_url", "broker_write_url", "result_backend"):
        _check_url(name, getattr(conf, name), settings.redis_url)
    refuse_compression()
    warn_of_exposed_files(Settings)


def refuse_compression() -> None:
    """Make kombu unpack no message: a few kilobytes could become gigabytes. It still packs those it sends."""
    for content_type in compression.encoders():
        pack, _ = compression.get_encoder(content_type)
        compression.register(pack, _refuse, content_type)


def _refuse(body: bytes) -> NoReturn:
    raise ContentDisallowed("compressed messages are not accepted")


def _check_pool() -> None:
    context = click.get_current_context(silent=True)
    source = context.get_parameter_source("pool") if context is not None else None
    if source not in (None, ParameterSource.DEFAULT):
        _exit("a pool was chosen (-P), but this worker has its own. Fix: leave out -P and CELERY_WORKER_POOL")


def _check_url(name: str, url: str, own: str) -> None:
    if not is_same_redis(url, own):
        _exit(
            f"{name} is {masked(url)}, but HERD_REDIS_URL is {masked(own)}: queue, ledger and results must "
            "be in one Redis. Fix: set only HERD_REDIS_URL, without -b, CELERY_BROKER_URL and "
            "CELERY_RESULT_BACKEND"
        )


def _exit(complaint: str) -> NoReturn:
    print(f"herd worker: {complaint}", file=sys.stderr)
    raise SystemExit(2)
