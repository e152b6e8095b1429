"""Logs: one JSON object a line, or text for people; never a prompt, never a secret."""

import logging
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import redis
import structlog

from llama_herd.errors import HerdError
from llama_herd.ops.log_handler import LogFile, LogHandler
from llama_herd.ops.settings import LogFormat
from llama_herd.tasks.protocol.message import is_job_task

#: Exceptions whose text cannot quote a prompt. Others may, such as a KeyError or a validation error.
#: torch raises plain RuntimeErrors about shapes and devices; no code here that reads prompts raises one.
SAFE = (HerdError, ImportError, OSError, redis.ConnectionError, redis.TimeoutError, RuntimeError)


#: What every line begins with.
HEAD = ("timestamp", "level", "logger", "event")


class JobLine(NamedTuple):
    """The fields that every line of the log about a job has, in order; None: unknown where it is written.

    attempt: counts from 1; 0: no attempt has started. trace_id: of the sender's W3C trace.
    """

    job_id: str
    attempt: int | None
    worker: str
    model: str
    tenant: str
    trace_id: str | None


def is_for_people(log_format: LogFormat, path: str | None = None) -> bool:
    """Whether lines are text, which is the default on a terminal; not in the file at `path`."""
    return log_format == "console" or (log_format == "auto" and path is None and sys.stderr.isatty())


def set_up_logs(
    log_format: LogFormat = "auto",
    level: int | str = logging.INFO,
    known: Mapping[str, str] | None = None,
    path: str | None = None,
) -> None:
    """Send every logger, Celery's and kombu's too, through structlog to standard error, or to a file.

    known: fields of `JobLine` that are the same for all jobs of this process. path: of that file, which may
    be rotated. Raises OSError if it cannot be written.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(lambda exc_info: traceback_text(exc_info[1])),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = LogFile(path, encoding="utf-8") if path is not None else LogHandler()
    handler.addFilter(shorten_lost_acks)
    handler.addFilter(name_exceptions)
    handler.addFilter(name_job)
    handler.setFormatter(
        _formatter(
            shared,
            known or {},
            is_for_people(log_format, path),
            has_colors=path is None and sys.stderr.isatty(),
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # These log each received message, and each job as succeeded in 0.000 s, since its work was done before;
    # torch's logs figures of a cache when a worker ends while it loads.
    for name in ("celery.worker.strategy", "celery.app.trace", "torch._subclasses.fake_tensor"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _formatter(
    shared: Sequence[structlog.typing.Processor], known: Mapping[str, str], is_text: bool, *, has_colors: bool
) -> structlog.stdlib.ProcessorFormatter:
    """Writes lines as text or as JSON; those that do not come from structlog go through `shared` first."""
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if is_text:
        renderer = structlog.dev.ConsoleRenderer(
            sort_keys=False,
            colors=has_colors,
            # The only one that takes a traceback that is already rendered.
            exception_formatter=structlog.dev.plain_traceback,
        )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[
            partial(_tell_job, known),
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            partial(_in_order, is_text),
            renderer,
        ],
    )


def _tell_job(
    known: Mapping[str, str], _: object, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Complete a line that names a job, Celery's lines too."""
    job_id = getattr(event.get("_record"), "job_id", None)
    if job_id is not None:
        event.setdefault("job_id", job_id)
    return event if event.get("job_id") is None else {**known, **event}


def _in_order(
    is_text: bool, _: object, __: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Put the keys of all lines first, then those of a job's lines; text leaves out what is unknown."""
    job_keys = JobLine._fields if event.get("job_id") is not None else ()
    told = {**{key: event.get(key) for key in (*HEAD, *job_keys)}, **event}
    return {key: value for key, value in told.items() if value is not None} if is_text else told


def name_job(record: logging.LogRecord) -> bool:
    """Let a record pass, but note which job Celery's message is about, if it names one."""
    args = record.args
    if isinstance(args, Mapping):
        args = (args.get("name"), args.get("id"))
    if isinstance(args, tuple) and len(args) > 1 and is_job_task(args[0]):
        record.job_id = str(args[1])
    return True


def traceback_text(error: BaseException | None) -> str:
    """Return the traceback of an exception and of its causes, first cause first: frames without variables."""
    chain: list[BaseException] = []
    while error is not None and error not in chain:
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\n".join(
        "".join([*traceback.format_tb(one.__traceback__), error_name(one)]) for one in reversed(chain)
    )


def error_name(error: BaseException) -> str:
    """Return the exception's type, and its text if that cannot quote a prompt."""
    kind = type(error)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{name}: {error}" if isinstance(error, SAFE) else name


def name_exceptions(record: logging.LogRecord) -> bool:
    """Let a record pass, but replace the text of exceptions that Celery quotes in its messages."""
    if isinstance(record.args, tuple):
        record.args = tuple(error_name(arg) if isinstance(arg, BaseException) else arg for arg in record.args)
    elif record.args and record.exc_info and record.exc_info[1]:  # Celery's tracer has made the text already
        record.args = {**record.args, "exc": error_name(record.exc_info[1])}
    return True


def shorten_lost_acks(record: logging.LogRecord) -> bool:
    """Shorten kombu's traceback of an ack without Redis to one line: the message just comes again."""
    if isinstance(record.msg, str) and record.msg.startswith(("Couldn't ack ", "Couldn't reject ")):
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True
