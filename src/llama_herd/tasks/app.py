"""The Celery app: for `celery -A llama_herd.tasks.app worker`, and for services that send tasks."""

import sys
from collections.abc import Mapping
from typing import Any, NoReturn

import click
from celery import Celery, _state
from celery.signals import celeryd_init
from click.core import ParameterSource
from kombu import compression
from kombu.exceptions import ContentDisallowed

from llama_herd.errors import SettingsError
from llama_herd.tasks.connection.connect import options_of_sentinels
from llama_herd.tasks.connection.redis_url import (
    SentinelUrl,
    celery_url,
    checked_url,
    is_same_redis,
    is_sentinel,
    is_socket,
    masked,
)
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.settings_files import warn_of_exposed_files


def refuse_settings(error: SettingsError, app: str) -> NoReturn:
    """End `celery -A <app>` with one line instead of a traceback. Others who import the app get the error."""
    context = click.get_current_context(silent=True)
    named = context.params.get("app") if context is not None else None
    if isinstance(named, str) and named.partition(":")[0] == app:
        _exit(str(error))
    raise error


def check_worker_start(conf: Any, settings: Settings) -> None:
    """Refuse to start with settings that cannot work, and switch decompression off."""
    context = click.get_current_context(silent=True)
    source = context.get_parameter_source("pool") if context is not None else None
    if source not in (None, ParameterSource.DEFAULT):
        _exit("a pool was chosen (-P), but this worker has its own. Fix: leave out -P and CELERY_WORKER_POOL")
    for name in ("broker_read_url", "broker_write_url"):
        if not is_same_redis(url := getattr(conf, name), settings.redis_url):
            _exit(
                f"{name} is {masked(url)}, but HERD_REDIS_URL is {masked(settings.redis_url)}: queue and "
                "ledger must be in one Redis. Fix: set only HERD_REDIS_URL, without -b and CELERY_BROKER_URL"
            )
    if not is_same_redis(conf.result_backend, settings.results_url):
        _exit(
            f"result_backend is {masked(conf.result_backend)}, but results go to "
            f"{masked(settings.results_url)}. Fix: set HERD_RESULT_URL to it, or leave out "
            "CELERY_RESULT_BACKEND and --result-backend"
        )
    refuse_compression()
    warn_of_exposed_files(Settings)


def refuse_compression() -> None:
    """Make kombu unpack no message: a few kilobytes could become gigabytes. It still packs those it sends."""
    for content_type in compression.encoders():
        pack, _ = compression.get_encoder(content_type)
        compression.register(pack, _refuse, content_type)


def _refuse(body: bytes) -> NoReturn:
    raise ContentDisallowed("compressed messages are not accepted")


def _exit(complaint: str) -> NoReturn:
    print(f"herd worker: {complaint}", file=sys.stderr)
    raise SystemExit(2)


#: What is so in every app, whatever its settings.
CELERY: Mapping[str, Any] = {
    "broker_connection_retry_on_startup": True,
    # Retry when Redis answers with an error (full, disk full, read-only), as after a lost connection.
    "broker_channel_error_retry": True,
    # Never give up on Redis: a worker that did would have to be started by hand.
    "broker_connection_max_retries": None,
    "redis_socket_timeout": 10.0,
    "redis_retry_on_timeout": True,
    # One engine runs all messages at once. These are strings, so that a client never imports a worker.
    "worker_pool": "llama_herd.worker.pool:EnginePool",
    "worker_consumer": "llama_herd.worker.broker.consumer:Consumer",
    # Acknowledge a message only when its result is stored. Prefetch no more than the batch has room for.
    "task_acks_late": True,
    "worker_prefetch_multiplier": 1,
    # The publisher stores STARTED when the job begins. Celery's tracer runs when it is over.
    "task_track_started": False,
    # Leases prevent double runs. Cancelling jobs at each lost connection would end healthy sequences.
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    # A worker holds messages with an ETA in addition to its prefetch count: limit them.
    "worker_eta_task_limit": 1000,
    # With it, anyone who reaches the queue could send `shutdown`. Neither `Client.cancel` nor Celery's
    # `revoke` needs it. A worker with HERD_REMOTE_CONTROL turns it on.
    "worker_enable_remote_control": False,
    # Events would show arguments, and so prompts.
    "worker_send_task_events": False,
    "task_send_sent_event": False,
    # JSON only: reading it runs no code.
    "accept_content": ["json"],
    "result_accept_content": ["json"],
    "task_serializer": "json",
    "result_serializer": "json",
}


def make_app(settings: Settings) -> Celery:
    """A Celery app for one Redis and tenant."""
    # The shared tasks of a service that imports this go on asking for the service's own app.
    is_alone = _state._tls.current_app is None
    app = Celery("llama_herd", include=["llama_herd.tasks.generate"], set_as_current=is_alone)
    ledger = Ledger.from_settings(settings)
    app.conf.update(
        CELERY,
        # Queue and ledger share one database: a job and its message come into being in one script.
        broker_url=celery_url(settings.redis_url),
        broker_use_ssl=celery_tls(settings.redis_url),
        broker_transport_options=broker_options(ledger.unacked_key, settings.redis_url),
        result_backend=celery_url(settings.results_url),
        redis_backend_use_ssl=celery_tls(settings.results_url),
        result_expires=settings.result_ttl_s,
        # Retry until Redis takes a result: giving up would store a failure instead.
        result_backend_transport_options={
            "retry_policy": {"max_retries": None},
            "global_keyprefix": ledger.results_prefix,
            **sentinel_options(settings.results_url),
        },
        # One queue for each model, so that a job never reaches a worker with another model.
        task_default_queue=queue_name(settings.default_model, settings.tenant),
        # A tenant's clients reach its own jobs only.
        control_exchange=ledger.control_exchange,
        # A worker that sends events (-E) sends them to its own tenant.
        event_exchange=ledger.key("celeryev"),
        redis_socket_keepalive=not is_socket(settings.results_url),  # redis-py rejects it there
    )

    def check_start(instance: Any, **_: Any) -> None:
        # All apps share this signal, and another app's worker may import this module to send tasks.
        if instance.app is app:
            check_worker_start(app.conf, settings)

    celeryd_init.connect(check_start, weak=False)
    return app


def broker_options(unacked_key: str, url: str) -> dict[str, Any]:
    """Settings of kombu's Redis transport: the names of its keys, and how soon it notices a loss."""
    return {
        # The tenant's own keys: a worker puts back every message there that nobody holds.
        "unacked_key": unacked_key,
        "unacked_index_key": f"{unacked_key}_index",
        # A connection that dies silently is noticed within 1 s + twice this interval.
        "health_check_interval": 2,
        "socket_keepalive": True,
        "socket_timeout": 10.0,
        "socket_connect_timeout": 5.0,
        **sentinel_options(url),
    }


def sentinel_options(url: str) -> dict[str, Any]:
    """Celery's options for Redis behind Sentinels: its name there, and how to log in to the Sentinels."""
    if not is_sentinel(url):
        return {}
    found = SentinelUrl.parse(checked_url(url))
    return {"master_name": found.master, "sentinel_kwargs": options_of_sentinels(found)}


def celery_tls(url: str) -> dict[str, str] | None:
    """TLS with Sentinels and Redis; for a rediss:// URL Celery reads it there."""
    return SentinelUrl.parse(checked_url(url)).tls or None if is_sentinel(url) else None


try:
    app = make_app(Settings.read())
except SettingsError as error:
    refuse_settings(error, __name__)
