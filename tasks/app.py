"""The Celery app: `celery -A llama_herd.tasks.app worker`, and what other services send tasks with."""

from typing import Any

from celery import Celery
from celery.signals import celeryd_init

from llama_herd.errors import SettingsError
from llama_herd.tasks.connection import celery_url
from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.message import queue_name
from llama_herd.tasks.settings import Settings
from llama_herd.tasks.worker_checks import check_worker_start, refuse_settings


def make_app(settings: Settings) -> Celery:
    """A Celery app for one Redis and tenant."""
    app = Celery("llama_herd", include=["llama_herd.tasks.generate"])
    url, ledger = celery_url(settings.redis_url), Ledger.of(settings)
    app.conf.update(
        # Queue, ledger and results share one database: a job and its message come into being in one script.
        broker_url=url,
        result_backend=url,
        broker_connection_retry_on_startup=True,
        # An error that Redis answers (full, disk full, read-only) passes as a lost connection does.
        broker_channel_error_retry=True,
        # However long Redis is away: a worker that gives up would have to be started by hand.
        broker_connection_max_retries=None,
        # One engine runs all messages at once; names only, so that a client never imports a worker.
        worker_pool="llama_herd.worker.pool:EnginePool",
        worker_consumer="llama_herd.worker.broker.consumer:Consumer",
        # A queue for each model: a job never meets the wrong one.
        task_default_queue=queue_name(settings.default_model, settings.tenant),
        # A message is done when its result is stored; a worker holds just what its batch has room for.
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        # The pool reports the start when prefill begins, not when the message arrives.
        task_track_started=False,
        # Leases prevent double runs; giving jobs up at each blink of the connection would end good sequences.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        # Messages that wait for their time are held beyond the prefetch count: bound them.
        worker_eta_task_limit=1000,
        # Anybody who reaches the queue could send `shutdown`; `Client.cancel` does not need it.
        # A worker with HERD_REMOTE_CONTROL turns it on.
        worker_enable_remote_control=False,
        # Events would show arguments, and so prompts.
        worker_send_task_events=False,
        task_send_sent_event=False,
        # Nothing that runs code when it is read.
        accept_content=["json"],
        result_accept_content=["json"],
        task_serializer="json",
        result_serializer="json",
        result_expires=settings.result_ttl_s,
        # A result that Redis does not take is offered until it does: giving up would store a failure instead.
        result_backend_transport_options={
            "retry_policy": {"max_retries": None},
            "global_keyprefix": ledger.results_prefix,
        },
        # Events, where a worker sends them (-E), go to those of its tenant.
        event_exchange=ledger.key("celeryev"),
        redis_socket_keepalive=True,
        redis_socket_timeout=10.0,
        redis_retry_on_timeout=True,
        broker_transport_options=broker_options(ledger.unacked_key),
    )

    def check_start(instance: Any, **_: Any) -> None:
        # The signal is every app's: somebody else's worker may import this module to send tasks.
        if instance.app is app:
            check_worker_start(app.conf, settings)

    celeryd_init.connect(check_start, weak=False)
    return app


def broker_options(unacked_key: str) -> dict[str, Any]:
    """How kombu's Redis transport works: what it keeps where, and how soon it notices a loss."""
    return {
        # Only a backstop: SWEEP finds a dead worker's jobs within seconds. Kombu looks each interval x
        # throttle, 100 s unless set.
        "visibility_timeout": 30,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        # Own names: a worker applies its timeout to every message that it finds under these keys.
        "unacked_key": unacked_key,
        "unacked_index_key": f"{unacked_key}_index",
        "unacked_mutex_key": f"{unacked_key}_mutex",
        # A worker that is killed while it sweeps stops the others' sweeps for this long, not for 300 s.
        "unacked_mutex_expire": 10,
        # A connection that is dead without saying so is noticed within 1 s + twice the interval.
        "health_check_interval": 2,
        "socket_keepalive": True,
        "socket_timeout": 10.0,
        "socket_connect_timeout": 5.0,
    }


try:
    app = make_app(Settings.read())
except SettingsError as error:
    refuse_settings(error, __name__)
