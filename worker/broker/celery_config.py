"""Celery's settings in a worker process: queues, prefetch, transports, results, links, logs.

They must stand before Celery's worker is built.
"""

import sys
import threading
import warnings
from functools import cache, partial
from typing import Any

from celery import Celery, signals
from kombu import Exchange, Queue

from llama_herd.errors import BadInput
from llama_herd.tasks.app import app, broker_options, make_app
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.worker import process
from llama_herd.worker.logs import set_up_logs
from llama_herd.worker.settings import WorkerSettings

#: How often a link is offered to a Redis that does not take it, about once a second. There is an end, since
#: what completes a chord is reserved to who sends it for a few times as long.
LINK_TRIES = 300

#: kombu's transport for what this process sends.
TENANT_TRANSPORT = "llama_herd.worker.broker.tenant_channel:TenantTransport"

#: Celery's result backend for this process.
RESULT_BACKEND = "llama_herd.worker.broker.result_backend:ResultBackend"

#: Threads that wait for the interpreter get it sooner: a step's publication is not held up by the next step.
SWITCH_INTERVAL_S = 0.0005


def hook_in() -> None:
    """Have Celery come here before it builds its worker."""
    signals.celeryd_init.connect(configure, weak=False)
    signals.setup_logging.connect(configure_logs, weak=False)


@cache
def app_of(own: WorkerSettings) -> Celery:
    """The Celery app of the one tenant in these settings: it stores its results, and sends its links on.

    The process's own is that of a worker of one tenant.
    """
    if own == process.settings():
        return app
    made = make_app(own)
    made.conf.task_default_queue = own.queue
    made.conf.broker_transport = TENANT_TRANSPORT
    made.conf.broker_transport_options["tenant"] = own.tenant
    insist_on_results(made)
    lead_links_home(made, own.link_queue)
    app.set_current()  # in place of the one just made
    return made


def configure(conf: Any, instance: Any, **_: Any) -> None:
    """Before the worker is built: it reads its own model's queue, and takes what its batch holds."""
    try:
        conf.worker_concurrency = process.num_places()
        conf.worker_eta_task_limit += process.num_places()
        _configure_queues(conf)
        conf.broker_transport = "llama_herd.worker.broker.queue_channel:QueueTransport"
        conf.worker_enable_remote_control = process.settings().remote_control
        insist_on_results(instance.app)
        lead_links_home(instance.app, process.settings().link_queue)
        process.device()
    except BadInput as error:
        print(f"herd worker: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # What Celery's tracer cannot store the finisher says in one line.
    warnings.filterwarnings("ignore", "Exception raised outside body", RuntimeWarning)
    threading.excepthook = process.end_process


def insist_on_results(app: Celery) -> None:
    """Offer results and links to a Redis that is full, read-only or away until it takes them, and no others.

    Celery's tracer would store, as soon as it can, that the task has failed. Of a link it would do so after
    half a second.
    """
    app.loader.override_backends = dict.fromkeys(("redis", "rediss"), RESULT_BACKEND)
    # Not the transport that messages come by: that one must see every error as it is.
    app.connection_for_write = partial(app.connection_for_write, transport=TENANT_TRANSPORT)
    policy = {**app.conf.task_publish_retry_policy, "max_retries": LINK_TRIES}
    app.conf.task_publish_retry_policy = policy


def lead_links_home(app: Celery, queue: str) -> None:
    """Send a link, the body of a chord or an errback to `queue` if it names none and its task is not ours.

    What a task's sender means by no queue is its own app's default queue. Ours is the model's, whose workers
    do not have the task.
    """

    def route(name: str, *_: Any, **__: Any) -> dict[str, str] | None:
        return None if name in app.tasks else {"queue": queue}

    given = app.conf.task_routes or ()
    app.conf.task_routes = [*(given if isinstance(given, list | tuple) else [given]), route]


def _configure_queues(conf: Any) -> None:
    """What the worker of several tenants holds is noted under a name that none of them has alone."""
    names = list(process.settings().by_queue)
    conf.task_default_queue = names[0]
    if process.settings().tenants:
        conf.task_queues = [Queue(name, Exchange(name), name) for name in names]
        keys = Keys(process.settings().joined_tenant)
        conf.broker_transport_options = broker_options(keys.unacked_key)
        conf.event_exchange = keys.key("celeryev")


def configure_logs(loglevel: int, **_: Any) -> None:
    """Take logging out of Celery's hands."""
    set_up_logs(process.settings().log_format, loglevel)
