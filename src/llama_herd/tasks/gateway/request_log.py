"""One line a request: who asked for what, and what became of it."""

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from llama_herd.tasks.error_place import place_of
from llama_herd.tasks.gateway.notes import Notes

log = logging.getLogger(__name__)

_FIELDS = "fields"


class JsonLines(logging.Formatter):
    """Every line as a JSON object. An exception is told without its words, which may be a prompt's."""

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
            line["cause"] = place_of(record.exc_info[1])
        return json.dumps(line, ensure_ascii=False)


def tell(
    method: str, route: str, status: int | None, took_s: float, notes: Notes, *, only_errors: bool
) -> None:
    """Log a request that is over. route: as it is written. status: None if nobody waited for one."""
    has_failed = (status is not None and status >= 500) or (status == 200 and notes.error is not None)
    if only_errors and not has_failed:
        return
    fields: Mapping[str, Any] = {
        "event": "request",
        "method": method,
        "route": route,
        "status": status,
        "ms": round(1000 * took_s, 1),
        "key": notes.key,
        "tenant": notes.tenant,
        "job_id": notes.job_id,
        "trace_id": notes.trace_id,
        "error": notes.error,
        "cause": notes.cause,
    }
    level = logging.ERROR if status == 500 else logging.WARNING if has_failed else logging.INFO
    words = [str(word) for word in (method, route, status, notes.error, notes.cause) if word]
    log.log(level, "%s", " ".join(words), extra={_FIELDS: fields})
