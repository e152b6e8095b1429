"""What is told of requests: a line each, who asked for what and what became of it, and how many there are."""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from time import monotonic
from typing import Any, cast

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llama_herd.errors import error_place
from llama_herd.tasks.gateway.problem import Problem
from llama_herd.tasks.gateway.request_headers import traceparent_of
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.protocol.message import TRACEPARENT, trace_id_of

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


@dataclass(slots=True)
class RequestFacts:
    """Facts for a request's line in the log. key: its name. error, cause: a code, and why; never its text."""

    key: str | None = None
    tenant: str | None = None
    job_id: str | None = None
    trace_id: str | None = None
    error: str | None = None
    cause: str | None = None

    def fail(self, problem: Problem) -> None:
        """Note why the request was not answered as it was meant."""
        self.error = problem.code
        self.cause = problem.message if problem.cause is None else problem.cause


def facts_of(scope: Scope) -> RequestFacts:
    """The facts of a request, which its ASGI scope holds."""
    return cast(RequestFacts, scope.setdefault("llama_herd.facts", RequestFacts()))


#: Of an answer that its client did not wait for, and of one at a path that is not there.
NO_STATUS, NO_ROUTE = 0, ""


class AnswerCount:
    """Counts answers since the start. A mapping is replaced as a whole, so that any thread may read it."""

    def __init__(self) -> None:
        self.num_under_way = 0
        self.num_ended: Mapping[tuple[str, int], int] = {}  # by route and status

    def begin(self) -> None:
        self.num_under_way += 1

    def end(self, route: str, status: int) -> None:
        self.num_under_way -= 1
        num = self.num_ended.get((route, status), 0) + 1
        self.num_ended = {**self.num_ended, (route, status): num}


class RequestMiddleware:
    """Counts and logs the requests of an application, each by the path of its route, with placeholders."""

    def __init__(
        self, app: ASGIApp, settings: GatewaySettings, count: AnswerCount, routes: Mapping[object, str]
    ) -> None:
        """routes: the path of each endpoint."""
        self._app = app
        self._wanted = settings.gateway_request_log
        self._count = count
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        status: int = NO_STATUS
        began_s = monotonic()
        facts_of(scope).trace_id = trace_id_of({TRACEPARENT: traceparent_of(Headers(scope=scope))})

        async def pass_on(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        self._count.begin()
        try:
            await self._app(scope, receive, pass_on)
        except Exception:
            status = HTTPStatus.INTERNAL_SERVER_ERROR  # as is answered, unless the answer had begun
            raise
        finally:
            route = self._routes.get(scope.get("endpoint"), NO_ROUTE)
            self._count.end(route, status)
            self._log_request(scope, route, status, monotonic() - began_s)

    def _log_request(self, scope: Scope, route: str, status: int, took_s: float) -> None:
        """Log a request that is over, if such ones are wanted."""
        facts = facts_of(scope)
        has_failed = status >= 500 or (status == 200 and facts.error is not None)
        if self._wanted == "off" or (self._wanted == "errors" and not has_failed):
            return
        fields = {
            "event": "request",
            "method": scope["method"],
            "route": route,
            "status": status or None,
            "ms": round(1000 * took_s, 1),
            **asdict(facts),
        }
        level = logging.ERROR if status == 500 else logging.WARNING if has_failed else logging.INFO
        words = [str(word) for word in (scope["method"], route, status, facts.error, facts.cause) if word]
        log.log(level, "%s", " ".join(words), extra={_FIELDS: fields})
