"""How many answers a gateway has given, and how many are under way."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Of an answer that its client did not wait for, and of one at a path that is not there.
NO_STATUS, NO_ROUTE = 0, ""


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """Since the start; frozen, so that any thread may read it."""

    num_under_way: int = 0
    num_ended: Mapping[tuple[str, int], int] = field(default_factory=dict)  # by route and status


class AnswerCount:
    """Counts the answers of the applications that it stands before."""

    def __init__(self) -> None:
        self.figures = AnswerFigures()

    def begin(self) -> None:
        self.figures = replace(self.figures, num_under_way=self.figures.num_under_way + 1)

    def end(self, route: str, status: int) -> None:
        ended = self.figures.num_ended
        num = ended.get((route, status), 0) + 1
        self.figures = AnswerFigures(self.figures.num_under_way - 1, {**ended, (route, status): num})


class Counted:
    """An application whose answers are counted by route, as the route is written and not as it was called."""

    def __init__(self, app: ASGIApp, count: AnswerCount, routes: Mapping[object, str]) -> None:
        """routes: the paths of the endpoints."""
        self._app = app
        self._count = count
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        status: int = NO_STATUS

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
            self._count.end(self._routes.get(scope.get("endpoint"), NO_ROUTE), status)
