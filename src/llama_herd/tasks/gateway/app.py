"""The gateway as an ASGI application."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import unquote

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llama_herd.errors import HerdError, error_place
from llama_herd.tasks.feeder.batch_execution import BatchCount
from llama_herd.tasks.gateway import openapi, page_files
from llama_herd.tasks.gateway.absent_routes import instead_of
from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.completion_answer import JOB_HEADER, REQUEST_HEADER
from llama_herd.tasks.gateway.context import GatewayContext, storage_of
from llama_herd.tasks.gateway.problem import AGAIN_HEADER, CLOSE, PASSES, Problem
from llama_herd.tasks.gateway.request_log import AnswerCount, RequestMiddleware, facts_of
from llama_herd.tasks.gateway.routes import OPERATIONS, Operation
from llama_herd.tasks.gateway.settings import GatewaySettings

#: A whole URL as the target of a request, which any server must understand.
_WHOLE_URL = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE | re.DOTALL)


class HeadMiddleware:
    """Refuses a head of more than `most` bytes. A whole URL as target becomes a path, and its host counts."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        try:
            plain = self._plain(scope)
        except Problem as problem:
            return await _answer(scope, problem)(scope, receive, send)
        return await self._app(plain, receive, send)

    def _plain(self, scope: Scope) -> Scope:
        """The scope with a path as its target. Raises Problem, also for a URL that names nobody."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        num_bytes = len(scope["raw_path"]) + len(scope["query_string"])
        if num_bytes + sum(len(name) + len(value) + 4 for name, value in headers) > self._most:
            raise Problem(431, "bad_request", "the head of the request is too long", headers=CLOSE)
        found = _WHOLE_URL.fullmatch(scope["raw_path"])
        if found is None:
            return scope
        host, path = found[1], found[2] or b"/"
        if not host or b"@" in host:
            raise Problem(400, "bad_request", "this is not HTTP/1.1", headers=CLOSE)
        others = [(name, value) for name, value in headers if name != b"host"]
        path_text = unquote(path.decode("ascii"))
        return {**scope, "path": path_text, "raw_path": path, "headers": [(b"host", host), *others]}


class CrossOrigin(CORSMiddleware):
    """Starlette's middleware, whose refusals are errors in the shape of all others."""

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        if answer.status_code < 400:
            return answer
        why = bytes(answer.body).decode()
        problem = Problem(answer.status_code, "foreign_origin", f"pages may not send this: {why}")
        return JSONResponse(problem.body, problem.status, headers={"Vary": answer.headers["vary"]})


def _answering(operation: Operation) -> Callable[[Request], Awaitable[ASGIApp]]:
    """What answers the requests for an operation. If it needs no key, a wrong one is refused all the same."""

    async def answer(request: Request) -> ASGIApp:
        call = Call(request.scope, request.receive)
        if operation.role is None:
            await call.context.authenticator.check_key(call)
        else:
            await call.admit(operation.role)
        found = await operation.endpoint(call)
        if isinstance(found, BaseModel):
            return Response(found.model_dump_json(), operation.status, media_type="application/json")
        return Response(status_code=operation.status) if found is None else found

    return answer


ROUTES = (
    Route("/", page_files.show_page, methods=["GET"]),
    Route("/page/{name}", page_files.show_page_file, methods=["GET"]),
    Route("/docs", openapi.show_docs, methods=["GET"]),
    Route("/openapi.json", openapi.show_document, methods=["GET"]),
    *(Route(path, _answering(one), methods=[one.method.upper()]) for one in OPERATIONS for path in one.paths),
)

_BUG = "the gateway has failed at this request"
_STOPPING = "the gateway is shutting down"
_WRONG_ROUTES = {
    404: ("not_found", "there is no such route: see /docs"),
    405: ("method_not_allowed", "this route has no such method: see /docs"),
}


def make_gateway_app(
    settings: GatewaySettings, answers: AnswerCount | None = None, batches: BatchCount | None = None
) -> Starlette:
    """The application. It holds no state but connections. The counts tell what it answers and runs.

    Raises BadInput for a storage that cannot be.
    """
    storage = storage_of(settings)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.context = GatewayContext(settings, batches or BatchCount(), storage)
        async with app.state.context.open():
            yield

    check_heads = Middleware(HeadMiddleware, most=settings.gateway_max_header_bytes)
    paths: dict[object, str] = {route.endpoint: route.path for route in ROUTES}
    log_requests = Middleware(
        RequestMiddleware, settings=settings, count=answers or AnswerCount(), routes=paths
    )
    cors = Middleware(
        CrossOrigin,
        allow_origins=sorted(settings.origins),
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=[JOB_HEADER, REQUEST_HEADER, "Location", "Retry-After", AGAIN_HEADER],
    )
    app = Starlette(
        routes=ROUTES,
        middleware=[
            check_heads,
            log_requests,
            *([cors] if settings.origins else []),
            Middleware(ErrorMiddleware),
        ],
        exception_handlers={HerdError: _on_error, HTTPException: _on_http_error},
        lifespan=lifespan,
    )
    # A redirect would lead to the host and the scheme of the request, which a client or a proxy has made up.
    app.router.redirect_slashes = False
    return app


async def _on_error(request: Request, error: Exception) -> Response:
    """Answer a request that ended with one of our own errors."""
    assert isinstance(error, HerdError)
    return _answer(request.scope, Problem.from_error(error))


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Answer a request that the router has refused: no such route, or no such method."""
    assert isinstance(error, HTTPException)
    code, message = _WRONG_ROUTES.get(error.status_code, ("bad_request", error.detail))
    headers = {}
    if error.status_code == 404 and (instead := instead_of(request.scope["path"])):
        message = f"there is no such route: {instead}"
    if error.status_code == 405:
        routes = [route for route in ROUTES if route.matches(request.scope)[0] is not Match.NONE]
        headers = {"Allow": ", ".join(sorted({method for one in routes for method in one.methods or ()}))}
    return _answer(request.scope, Problem(error.status_code, code, message, headers=headers))


class ErrorMiddleware:
    """Answers a request that met a bug of ours with 500, and one whose time is over with 503.

    Of a bug only the kind and its place in the code are logged: its words may be a prompt's.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        has_begun = False

        async def pass_on(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, pass_on)
        except asyncio.CancelledError:  # by the server, which ends
            answer = _answer(scope, Problem(503, "gateway_stopping", _STOPPING, headers=PASSES))
            if has_begun:
                raise
            await answer(scope, receive, send)
        except Exception as error:
            late = error.__cause__ if has_begun else None  # Starlette answers no error behind a status
            answer = _answer(
                scope,
                Problem.from_error(late)
                if isinstance(late, HerdError)
                else Problem(500, "internal_error", _BUG, cause=error_place(error)),
            )
            if not has_begun:  # else the server cuts it off, since it is not whole
                await answer(scope, receive, send)


def _answer(scope: Scope, problem: Problem) -> Response:
    """A problem as the response to a request, whose log line gets it, too."""
    facts_of(scope).fail(problem)
    return JSONResponse(problem.body, problem.status, headers=problem.answer_headers)
