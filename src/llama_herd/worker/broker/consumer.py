"""Celery's consumer, made safe: no message can end it, whatever is in it."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from time import sleep
from typing import Any

import structlog
from celery import Celery
from celery.exceptions import CPendingDeprecationWarning, InvalidTaskError
from celery.worker import consumer
from kombu.message import Message
from redis.exceptions import RedisError

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError
from llama_herd.ops.logs import error_name
from llama_herd.tasks.connection.connect import unavailable
from llama_herd.tasks.protocol.job import is_job_id
from llama_herd.tasks.protocol.message import is_job_task
from llama_herd.worker import process
from llama_herd.worker.broker import celery_config
from llama_herd.worker.broker.long_messages import NUM_BYTES, accept_compression
from llama_herd.worker.broker.message_json import UNREADABLE, read_json, write_json
from llama_herd.worker.broker.request import JobRequest, QuietRequest, is_refused, refuse

log = structlog.get_logger(__name__)

#: Most characters of a task's name in the reason of a dead letter.
MAX_NAME = 100

#: Most characters of an id under which a failure is stored: it becomes part of a key.
MAX_ID = 1024

BAD_ID = (
    "has an id that cannot name a job: 1 to 128 letters, digits, dots, underscores, colons or dashes are "
    "allowed. Fix: another task_id, or none"
)

#: Celery's own tasks that do as much as a message asks for. A worker of several tenants runs none: a long one
#: would slow down the jobs of the others.
UNBOUNDED = frozenset(
    f"celery.{name}" for name in ("chain", "chord", "chord_unlock", "chunks", "group", "map", "starmap")
)

#: What a message of Celery's first protocol has in its body, and the second one in its headers.
_HEADERS = ("task", "id", "retries", "eta", "expires", "timelimit", "group", "group_index")
_EMBED = ("callbacks", "errbacks", "chord")

#: Celery's options for the pauses before it connects again; its defaults grow to half a minute.
RECONNECT = {"interval_start": 0.2, "interval_step": 0.3, "interval_max": 2.0}
#: Pause before it does so where Redis is there, but of no use.
USELESS_S = 1.0


class Consumer(consumer.Consumer):  # type: ignore[misc]
    """Celery's consumer, but a message that it cannot handle goes to the dead letters, and into no log.

    If such a message names its job, the job ends with an error that says what is wrong.
    """

    def __init__(self, *args: Any, worker_options: dict[str, Any] | None = None, **options: Any) -> None:
        """Make a consumer without gossip and mingle, which reach every worker in a Redis, whoever owns it."""
        quiet = dict.fromkeys(("without_mingle", "without_gossip"), True)
        quiet["without_heartbeat"] = not options.get("task_events")
        self._outage, self._is_of_use = "", False
        # At each lost connection, of tasks that Celery may cancel one day; its logs let them pass until here.
        warnings.filterwarnings("ignore", category=CPendingDeprecationWarning)
        super().__init__(*args, worker_options={**(worker_options or {}), **quiet}, **options)
        accept_compression(process.own_settings().max_message_bytes)

    def ensure_connected(self, conn: Any) -> Any:
        """Connect or reconnect within two seconds after Redis is back."""
        ensure = conn.ensure_connection

        def ensure_connection(_: Any, *args: Any, **options: Any) -> Any:
            return ensure(lambda error, _: self._note_outage(error), *args, **{**options, **RECONNECT})

        conn.ensure_connection = ensure_connection
        return super().ensure_connected(conn)

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        self._note_outage(exc)
        sleep(USELESS_S)

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """Take a connection that was never of use for none; Celery tells of each as one that it has lost."""
        if self._is_of_use:
            super().on_connection_error_after_connected(exc)
        else:
            with suppress(Exception):
                self.connection.collect()
            self.on_connection_error_before_connected(exc)
        self._is_of_use = False

    def _note_outage(self, error: Exception) -> None:
        """Log why there is no connection, once until there is one; Celery would at each try."""
        url = process.own_settings().redis_url
        reason = str(unavailable(error, url)) if isinstance(error, RedisError) else error_name(error)
        if reason != self._outage:
            log.warning("waiting for Redis", reason=reason)
            self._outage = reason

    def update_strategies(self) -> None:
        """Have the app of each tenant run the messages of the tenant's queue."""
        apps = {queue: celery_config.app_of(own) for queue, own in process.own_settings().by_queue.items()}
        for app in (self.app, *apps.values()):
            for task in app.tasks.values():
                task.Request = JobRequest if getattr(task, "engine_task", False) else QuietRequest
        super().update_strategies()
        if set(apps.values()) == {self.app}:
            return
        for name in self.app.tasks.keys() & UNBOUNDED:
            del self.strategies[name]
        for name in self.app.tasks.keys() - UNBOUNDED:
            by_queue = {
                queue: app.tasks[name].start_strategy(app, self)
                for queue, app in apps.items()
                if name in app.tasks  # the process's own app may have tasks that the others do not have
            }
            self.strategies[name] = partial(_strategy_of_queue, by_queue)

    def create_task_handler(self, *args: Any, **options: Any) -> Callable[[Message], Any]:
        """Celery calls this for each connection."""
        handle = super().create_task_handler(*args, **options)
        self._outage, self._is_of_use = "", True
        self.pool.watch(self.task_consumer.channel)

        def guarded(message: Message) -> Any:
            try:
                upgrade_first_protocol(message)
                headers = message.headers
                if is_job_task(headers["task"]) and not is_job_id(headers.get("id")):
                    return self._refuse(message, "its id cannot name a job", BAD_ID)
                if not isinstance(headers.get("shadow"), str | None):
                    raise ValueError("the header `shadow` is not a text")
                _refuse_stand_in(message)
                return handle(message)
            except RedisError:
                raise
            except GenerationError:  # the result of a revoked or expired message cannot be stored
                return self._refuse(message, "its result cannot be stored")
            except UNREADABLE as error:
                return self._refuse(message, type(error).__name__)

        self._handle = handle
        return guarded

    def on_unknown_message(self, body: Any, message: Message) -> None:
        self._refuse(message, "it names no task")

    def on_unknown_task(self, body: Any, message: Message, exc: BaseException) -> None:
        name = str(message.headers["task"])[:MAX_NAME]
        complaint = f"names an unknown task, {name}. Fix: send it to a queue whose workers have the task"
        self._refuse(message, f"unknown task {name}", complaint)

    def on_invalid_task(self, body: Any, message: Message, exc: BaseException) -> None:
        self._refuse(message, type(exc).__name__)

    def on_decode_error(self, message: Message, exc: BaseException) -> None:
        self._refuse(message, type(exc).__name__)

    def _refuse(self, message: Message, reason: str, complaint: str = "") -> Any:
        """Put a message among the dead letters; its job or task, if it names one, ends with the complaint."""
        message.channel.put_aside(reason)
        name = message.headers.get("task")
        task_id = message.headers.get("id") or message.properties.get("correlation_id")
        limit = process.own_settings().max_message_bytes
        unread = f"cannot be read ({reason}). Fix: send JSON, of at most {limit} bytes when unpacked"
        complaint = complaint or unread
        if is_job_id(task_id) and is_job_task(name) and not is_refused(message):
            refuse(message, task_id, complaint)
            with suppress(*UNREADABLE, GenerationError):
                return self._handle(message)
        if isinstance(task_id, str) and 0 < len(task_id) <= MAX_ID:
            app = celery_config.app_of(process.own_settings().for_queue(message.delivery_info["routing_key"]))
            error = GenerationError(ErrorCode.INVALID_JOB, f"message: {complaint}")
            failure = error if is_job_task(name) else InvalidTaskError(f"the message {complaint}")
            self.pool.run_aside(partial(_store_failure, app, task_id, failure))
        message.reject_log_error(log, self.connection_errors)
        return None


def _store_failure(app: Celery, task_id: str, failure: Exception) -> None:
    """Store that a task has failed that can be no job; never raises."""
    try:
        app.backend.mark_as_failure(task_id, failure)
    except Exception as error:
        shown = task_id if is_job_id(task_id) else None  # else it may be any text
        log.error("failure was not stored", task_id=shown, error=error_name(error))


def _strategy_of_queue(by_queue: Mapping[str, Callable[..., Any]], message: Message, *args: Any) -> Any:
    return by_queue[message.delivery_info["routing_key"]](message, *args)


def _refuse_stand_in(message: Message) -> None:
    num_bytes, limit = message.headers.get(NUM_BYTES), process.own_settings().max_message_bytes
    if isinstance(num_bytes, int) and is_job_task(message.headers["task"]):
        fix = "Fix: a shorter prompt, or a larger HERD_MAX_MESSAGE_BYTES"
        refuse(message, message.headers["id"], f"must be at most {limit} bytes, got {num_bytes}. {fix}")


def upgrade_first_protocol(message: Message) -> None:
    """Turn a message of Celery's first protocol, which has all in its body, into one of the second.

    Raises one of UNREADABLE.
    """
    if "task" in message.headers:
        return
    fields = read_json(message.body)
    fields["group"] = fields.get("taskset")
    headers = {name: fields.get(name) for name in _HEADERS}
    message.headers = {**message.headers, **headers}
    embed = {name: fields.get(name) for name in _EMBED}
    message.body = write_json([fields["args"], fields["kwargs"], embed]).encode()
