"""The middleware around all others: it counts every request, and logs it at its end."""

from collections.abc import Mapping
from http import HTTPStatus
from time import monotonic

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llama_herd.tasks.gateway.answer_count import NO_ROUTE, NO_STATUS, AnswerCount
from llama_herd.tasks.gateway.request_facts import facts_of
from llama_herd.tasks.gateway.request_headers import traceparent_of
from llama_herd.tasks.gateway.request_log import log_request
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.message import TRACEPARENT, trace_id_of


class RequestMiddleware:
    """Counts and logs the requests of an application, each by the path of its route, not by its own."""

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
        if self._wanted != "off":
            only_errors = self._wanted == "errors"
            log_request(
                scope["method"], route, status or None, took_s, facts_of(scope), only_errors=only_errors
            )
