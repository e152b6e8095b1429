"""The gateway as an ASGI application."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from time import monotonic

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
from llama_herd.tasks.gateway import (
    batch_routes,
    docs_page,
    file_routes,
    health,
    herd_routes,
    job_routes,
    openai_routes,
    openapi,
    page_files,
    tokenize_routes,
)
from llama_herd.tasks.gateway.answer_count import NO_ROUTE, NO_STATUS, AnswerCount
from llama_herd.tasks.gateway.completion_answer import JOB_HEADER
from llama_herd.tasks.gateway.context import GatewayContext
from llama_herd.tasks.gateway.problem import Problem
from llama_herd.tasks.gateway.request_facts import facts_of
from llama_herd.tasks.gateway.request_headers import traceparent_of
from llama_herd.tasks.gateway.request_log import log_request
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.protocol.message import TRACEPARENT, trace_id_of


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


class CrossOrigin(CORSMiddleware):
    """Starlette's middleware, whose refusals are errors in the shape of all others."""

    def preflight_response(self, request_headers: Headers) -> Response:
        answer = super().preflight_response(request_headers)
        if answer.status_code < 400:
            return answer
        why = bytes(answer.body).decode()
        problem = Problem(answer.status_code, "foreign_origin", f"pages may not send this: {why}")
        return JSONResponse(problem.body, problem.status, headers={"Vary": answer.headers["vary"]})


ROUTES = (
    Route("/", page_files.show_page, methods=["GET"]),
    Route("/page/{name}", page_files.show_page_file, methods=["GET"]),
    Route("/docs", docs_page.show_docs, methods=["GET"]),
    Route("/openapi.json", openapi.show_document, methods=["GET"]),
    Route("/health", health.ready, methods=["GET"]),
    Route("/health/live", health.live, methods=["GET"]),
    Route("/health/ready", health.ready, methods=["GET"]),
    Route("/v1/herd", herd_routes.show_herd, methods=["GET"]),
    Route("/version", herd_routes.show_version, methods=["GET"]),
    Route("/v1/models", openai_routes.list_models, methods=["GET"]),
    Route("/v1/models/{model}", openai_routes.get_model, methods=["GET"]),
    Route("/v1/completions", openai_routes.create_completion, methods=["POST"]),
    Route("/v1/chat/completions", openai_routes.create_chat_completion, methods=["POST"]),
    Route("/tokenize", tokenize_routes.tokenize_prompt, methods=["POST"]),
    Route("/detokenize", tokenize_routes.detokenize_ids, methods=["POST"]),
    Route("/v1/files", file_routes.create_file, methods=["POST"]),
    Route("/v1/files", file_routes.list_files, methods=["GET"]),
    Route("/v1/files/{id}", file_routes.get_file, methods=["GET"]),
    Route("/v1/files/{id}", file_routes.delete_file, methods=["DELETE"]),
    Route("/v1/files/{id}/content", file_routes.get_file_content, methods=["GET"]),
    Route("/v1/batches", batch_routes.create_batch, methods=["POST"]),
    Route("/v1/batches", batch_routes.list_batches, methods=["GET"]),
    Route("/v1/batches/{id}", batch_routes.get_batch, methods=["GET"]),
    Route("/v1/batches/{id}/cancel", batch_routes.cancel_batch, methods=["POST"]),
    Route("/v1/jobs", job_routes.submit_job, methods=["POST"]),
    Route("/v1/jobs/{id}", job_routes.get_job, methods=["GET"]),
    Route("/v1/jobs/{id}", job_routes.cancel_job, methods=["DELETE"]),
    Route("/v1/jobs/{id}/events", job_routes.stream_events, methods=["GET"]),
    Route("/v1/jobs/{id}/purge", job_routes.forget_job, methods=["POST"]),
)

_WRONG_ROUTES = {
    404: ("not_found", "there is no such route: see /docs"),
    405: ("method_not_allowed", "this route has no such method: see /docs"),
}


def make_gateway_app(
    settings: GatewaySettings, answers: AnswerCount | None = None, batches: BatchCount | None = None
) -> Starlette:
    """The application. It holds no state but connections. The counts tell what it answers and runs."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.context = GatewayContext(settings, batches or BatchCount())
        async with app.state.context.open():
            yield

    paths: dict[object, str] = {route.endpoint: route.path for route in ROUTES}
    log_requests = Middleware(
        RequestMiddleware, settings=settings, count=answers or AnswerCount(), routes=paths
    )
    cors = Middleware(
        CrossOrigin,
        allow_origins=sorted(settings.origins),
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=[JOB_HEADER, "Location", "Retry-After"],
    )
    app = Starlette(
        routes=ROUTES,
        middleware=[log_requests, *([cors] if settings.origins else []), Middleware(ErrorMiddleware)],
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
    headers = {"Allow": ", ".join(_methods_at(request.scope))} if error.status_code == 405 else {}
    return _answer(request.scope, Problem(error.status_code, code, message, headers=headers))


def _methods_at(scope: Scope) -> list[str]:
    """The methods of all routes that have this path."""
    routes = [route for route in ROUTES if route.matches(scope)[0] is not Match.NONE]
    return sorted({method for route in routes for method in route.methods or ()})


class ErrorMiddleware:
    """Answers a request that met a bug of ours with 500.

    Only the kind of the error and its place in the code are logged: its words may be a prompt's.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def pass_on(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, pass_on)
        except Exception as error:
            message = "the gateway has failed at this request"
            answer = _answer(scope, Problem(500, "internal_error", message, cause=error_place(error)))
            if not has_begun:  # else the server cuts it off, since it is not whole
                await answer(scope, receive, send)


def _answer(scope: Scope, problem: Problem) -> Response:
    """A problem as the response to a request, whose log line gets it, too."""
    facts_of(scope).fail(problem)
    return JSONResponse(problem.body, problem.status, headers=dict(problem.headers))
