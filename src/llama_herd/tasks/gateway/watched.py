"""Watched: counts every request, and logs it at its end."""

from collections.abc import Mapping
from http import HTTPStatus
from time import monotonic

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llama_herd.tasks.gateway.answer_count import NO_ROUTE, NO_STATUS, AnswerCount
from llama_herd.tasks.gateway.notes import notes_of
from llama_herd.tasks.gateway.request_log import tell
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.message import trace_id_of


class Watched:
    """An application whose requests are counted and logged by route, as the route is written."""

    def __init__(
        self, app: ASGIApp, settings: GatewaySettings, count: AnswerCount, routes: Mapping[object, str]
    ) -> None:
        """Watch an application. routes: the paths of its endpoints."""
        self._app = app
        self._log = settings.gateway_request_log
        self._count = count
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        status: int = NO_STATUS
        began_s = monotonic()
        notes_of(scope).trace_id = trace_id_of(Headers(scope=scope))

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
            self._tell(scope, route, status, monotonic() - began_s)

    def _tell(self, scope: Scope, route: str, status: int, took_s: float) -> None:
        if self._log != "off":
            only_errors = self._log == "errors"
            tell(scope["method"], route, status or None, took_s, notes_of(scope), only_errors=only_errors)
