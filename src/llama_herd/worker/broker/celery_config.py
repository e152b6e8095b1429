"""Celery's settings in a worker process: queues, prefetch, transports, results, links, logs.

They must be set before Celery's worker is built.
"""

import logging
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple, NoReturn

from celery import Celery, signals
from celery.app.routes import MapRoute
from celery.utils.nodenames import node_format
from celery.utils.text import str_to_list
from kombu import Exchange, Queue

from llama_herd.errors import BadInput, HubUnavailable
from llama_herd.ops.logs import set_up_logs
from llama_herd.tasks.app import app, broker_options, make_app
from llama_herd.tasks.connection.redis_url import is_sentinel, is_socket
from llama_herd.tasks.ledger.keys import Keys
from llama_herd.tasks.settings import Settings
from llama_herd.worker import process
from llama_herd.worker.broker.tenant_channel import QueuesOfLinks
from llama_herd.worker.settings import WorkerSettings

#: How often a link is sent again, about once a second, while Redis does not accept it. The number is bounded,
#: since the completion of a chord is reserved to its sender for only a few times as long.
LINK_TRIES = 300


class RedisClasses(NamedTuple):
    """Ours in the place of kombu's and Celery's for one kind of Redis, by name."""

    queue_transport: str  # brings messages
    tenant_transport: str  # for messages that this process sends
    results: str  # in the Redis of the jobs
    remote_results: str  # in another one


_PLAIN = RedisClasses(
    "llama_herd.worker.broker.queue_transport:QueueTransport",
    "llama_herd.worker.broker.tenant_channel:TenantTransport",
    "llama_herd.worker.broker.result_backend:ResultBackend",
    "llama_herd.worker.broker.result_backend:RemoteResultBackend",
)
_SOCKET = _PLAIN._replace(
    queue_transport="llama_herd.worker.broker.queue_transport:SocketQueueTransport",
    tenant_transport="llama_herd.worker.broker.tenant_channel:SocketTenantTransport",
)
_SENTINEL = RedisClasses(
    "llama_herd.worker.broker.sentinel_transport:SentinelQueueTransport",
    "llama_herd.worker.broker.sentinel_transport:SentinelTenantTransport",
    "llama_herd.worker.broker.sentinel_transport:SentinelResultBackend",
    "llama_herd.worker.broker.sentinel_transport:RemoteSentinelResultBackend",
)

#: Waiting threads get the interpreter sooner: the next step does not delay the publication of the last one.
SWITCH_INTERVAL_S = 0.0005


def broker_classes() -> RedisClasses:
    if process.has_sentinels():
        return _SENTINEL
    return _SOCKET if is_socket(process.own_settings().redis_url) else _PLAIN


@cache
def app_of(own: WorkerSettings) -> Celery:
    """The Celery app of the one tenant in these settings, which stores its results and sends its links.

    A worker of one tenant uses the process's own app.
    """
    if own == process.own_settings():
        return app
    made = make_app(own)
    made.conf.task_default_queue = own.queue
    made.conf.broker_transport = broker_classes().tenant_transport
    made.conf.broker_transport_options["tenant"] = own.tenant
    ask_one_address(made.conf)
    insist_on_results(made, own)
    lead_links_home(made, own)
    app.set_current()  # on a thread without one, make_app has made the new one current
    return made


def has_mailbox(own: WorkerSettings) -> bool:
    """Whether Celery's own mailbox hears what the clients of this one tenant send."""
    return own.remote_control and app_of(own).conf.control_exchange == app.conf.control_exchange


def configure(conf: Any, instance: Any, options: Mapping[str, Any], **_: Any) -> None:
    """Set up the worker before it is built: it reads its model's queue, and takes what its batch holds."""
    try:
        signals.setup_logging.connect(partial(configure_logs, instance.hostname), weak=False)
        conf.worker_concurrency = process.own_settings().num_places
        conf.worker_eta_task_limit += process.own_settings().num_places
        _configure_queues(conf)
        check_queues(list(process.own_settings().by_queue), options)
        conf.broker_transport_options["worker"] = instance.hostname
        ask_one_address(conf)
        conf.broker_transport = broker_classes().queue_transport
        conf.worker_enable_remote_control = process.own_settings().remote_control
        insist_on_results(instance.app, process.own_settings())
        lead_links_home(instance.app, process.own_settings())
        process.device()
    except (BadInput, HubUnavailable) as error:
        if logfile := options.get("logfile"):  # standard error leads nowhere in a detached worker
            with suppress(OSError):
                set_up_logs(path=node_format(logfile, instance.hostname))
                logging.getLogger(__name__).error("herd worker: %s", str(error))
        _refuse(str(error), 2 if isinstance(error, BadInput) else 1)  # a hub may answer next time
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # The finisher logs in one line what Celery's tracer cannot store.
    warnings.filterwarnings("ignore", "Exception raised outside body", RuntimeWarning)
    threading.excepthook = process.end_process


def result_backend(own: Settings) -> str:
    """The name of the class that stores results."""
    kinds = _SENTINEL if is_sentinel(own.results_url) else _PLAIN
    return kinds.remote_results if own.keeps_results_elsewhere else kinds.results


def insist_on_results(app: Celery, own: Settings) -> None:
    """Send results and links again while Redis is full, read-only or away, but not after other errors.

    Celery's tracer alone would store that the task has failed, for a link after half a second.
    """
    schemes = ("redis", "rediss", "sentinel")
    app.loader.override_backends = dict.fromkeys(schemes, result_backend(own))
    # The transport that messages come by stays as it is: it must see every error.
    app.connection_for_write = partial(app.connection_for_write, transport=broker_classes().tenant_transport)
    policy = {**app.conf.task_publish_retry_policy, "max_retries": LINK_TRIES}
    app.conf.task_publish_retry_policy = policy


def lead_links_home(app: Celery, own: WorkerSettings) -> None:
    """Route a link, the body of a chord or an errback that names no queue, if its task is not ours.

    A sender that names no queue means the default queue of its own app, which only the settings here can
    name. Ours is the model's queue, whose workers do not have the task.
    """
    by_name = MapRoute(own.routes_of_links)

    def route(name: str, *_: Any, **__: Any) -> dict[str, str] | None:
        return None if name in app.tasks else by_name(name) or {"queue": own.link_queue}

    given = app.conf.task_routes or ()
    app.conf.task_routes = [*(given if isinstance(given, list | tuple) else [given]), route]
    app.amqp.queues_cls = QueuesOfLinks


def ask_one_address(conf: Any) -> None:
    """Keep kombu from the other Sentinels' addresses: see `PrimaryChannel`, which asks all of them.

    And from a socket's prefix, by which it would take its own transport in the place of ours.
    """
    if broker_classes() is not _PLAIN:
        first = process.broker_urls()[0].removeprefix("redis+")
        conf.update(broker_url=first, broker_read_url=first, broker_write_url=first)


def _configure_queues(conf: Any) -> None:
    """Set the queues. A worker of several tenants notes its unacknowledged messages under a joint name."""
    names = list(process.own_settings().by_queue)
    conf.task_default_queue = names[0]
    if process.own_settings().tenants:
        conf.task_queues = [Queue(name, Exchange(name), name) for name in names]
        keys = Keys(process.own_settings().joint_tenant)
        conf.broker_transport_options = broker_options(keys.unacked_key, process.own_settings().redis_url)
        conf.event_exchange = keys.key("celeryev")


def check_queues(own: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raise BadInput if Celery's -Q or -X keeps one of our queues from being read: it would look served."""
    read, left_out = (str_to_list(options.get(name)) for name in ("queues", "exclude_queues"))
    read = set(read or own).difference(left_out or ())
    if missing := [name for name in own if name not in read]:
        raise BadInput(
            f"-Q or -X leaves out {missing[0]}, the queue of this worker's model. Fix: let -Q name "
            f"{','.join(own)}, too, or leave both out; HERD_SERVED_MODEL_NAME names the queue"
        )


def _refuse(reason: str, code: int = 2) -> NoReturn:
    print(f"herd worker: {reason}", file=sys.stderr)
    raise SystemExit(code) from None


def configure_logs(worker: str, loglevel: int, logfile: str | None = None, **_: Any) -> None:
    """Take logging out of Celery's hands, but for the file of its option --logfile.

    HERD_LOG_LEVEL counts more than its option --loglevel.
    """
    settings = process.own_settings()
    is_given = "log_level" in settings.model_fields_set
    known = {"worker": worker, "model": settings.served_model}
    if not settings.tenants:
        known["tenant"] = settings.tenant
    level = settings.log_level.upper() if is_given else loglevel
    try:
        set_up_logs(settings.log_format, level, known, logfile or None)
    except OSError as error:
        _refuse(f"--logfile {logfile} cannot be written: {error.strerror}. Fix: name a file that can be")
    if logfile:  # standard error leads nowhere in a detached worker
        redirect = partial(app.log.redirect_stdouts_to_logger, logging.getLogger("celery.redirected"))
        redirect(app.conf.worker_redirect_stdouts_level, stderr=False)  # a print is no error
        redirect(logging.ERROR, stdout=False)
