"""One line a request: who asked for what, and what became of it."""

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from llama_herd.errors import error_place
from llama_herd.tasks.gateway.request_facts import RequestFacts

log = logging.getLogger(__name__)

_FIELDS = "fields"


class JsonLogFormatter(logging.Formatter):
    """Writes log lines as JSON objects. Of an exception it has the place: its words may quote a prompt."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        line: dict[str, Any] = {
            "timestamp": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info and record.exc_info[1]:
            line["cause"] = error_place(record.exc_info[1])
        return json.dumps(line, ensure_ascii=False)


def log_request(
    method: str, route: str, status: int | None, took_s: float, facts: RequestFacts, *, only_errors: bool
) -> None:
    """Log a request that is over.

    route: the path of the route, with placeholders. status: None if the client went away before it.
    """
    has_failed = (status is not None and status >= 500) or (status == 200 and facts.error is not None)
    if only_errors and not has_failed:
        return
    fields: Mapping[str, Any] = {
        "event": "request",
        "method": method,
        "route": route,
        "status": status,
        "ms": round(1000 * took_s, 1),
        "key": facts.key,
        "tenant": facts.tenant,
        "job_id": facts.job_id,
        "trace_id": facts.trace_id,
        "error": facts.error,
        "cause": facts.cause,
    }
    level = logging.ERROR if status == 500 else logging.WARNING if has_failed else logging.INFO
    words = [str(word) for word in (method, route, status, facts.error, facts.cause) if word]
    log.log(level, "%s", " ".join(words), extra={_FIELDS: fields})
