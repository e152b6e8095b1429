"""The gateway as an ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from llama_herd.errors import HerdError
from llama_herd.tasks.error_place import place_of
from llama_herd.tasks.feeder.batch_count import BatchCount
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
from llama_herd.tasks.gateway.answer_count import AnswerCount
from llama_herd.tasks.gateway.door import Door
from llama_herd.tasks.gateway.errors import Problem
from llama_herd.tasks.gateway.notes import notes_of
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.gateway.watched import Watched

ROUTES = (
    Route("/", page_files.show_page, methods=["GET"]),
    Route("/page/{name}", page_files.show_file, methods=["GET"]),
    Route("/docs", docs_page.show_page, methods=["GET"]),
    Route("/openapi.json", openapi.show_document, methods=["GET"]),
    Route("/health", health.ready, methods=["GET"]),
    Route("/health/live", health.live, methods=["GET"]),
    Route("/health/ready", health.ready, methods=["GET"]),
    Route("/v1/herd", herd_routes.show_herd, methods=["GET"]),
    Route("/v1/models", openai_routes.models, methods=["GET"]),
    Route("/v1/models/{model}", openai_routes.model, methods=["GET"]),
    Route("/v1/completions", openai_routes.completions, methods=["POST"]),
    Route("/v1/chat/completions", openai_routes.chat_completions, methods=["POST"]),
    Route("/tokenize", tokenize_routes.tokenize, methods=["POST"]),
    Route("/detokenize", tokenize_routes.detokenize, methods=["POST"]),
    Route("/v1/files", file_routes.create, methods=["POST"]),
    Route("/v1/files", file_routes.show_all, methods=["GET"]),
    Route("/v1/files/{id}", file_routes.show, methods=["GET"]),
    Route("/v1/files/{id}", file_routes.delete, methods=["DELETE"]),
    Route("/v1/files/{id}/content", file_routes.content, methods=["GET"]),
    Route("/v1/batches", batch_routes.create, methods=["POST"]),
    Route("/v1/batches", batch_routes.show_all, methods=["GET"]),
    Route("/v1/batches/{id}", batch_routes.show, methods=["GET"]),
    Route("/v1/batches/{id}/cancel", batch_routes.cancel, methods=["POST"]),
    Route("/v1/jobs", job_routes.submit, methods=["POST"]),
    Route("/v1/jobs/{id}", job_routes.show, methods=["GET"]),
    Route("/v1/jobs/{id}", job_routes.cancel, methods=["DELETE"]),
    Route("/v1/jobs/{id}/events", job_routes.events, methods=["GET"]),
    Route("/v1/jobs/{id}/purge", job_routes.purge, methods=["POST"]),
)

_WRONG_ROUTES = {
    404: ("not_found", "there is no such route: see /docs"),
    405: ("method_not_allowed", "this route has no such method: see /docs"),
}


def make_app(
    settings: GatewaySettings, answers: AnswerCount | None = None, batches: BatchCount | None = None
) -> Starlette:
    """The application. It holds no state but connections. The counts tell what it answers and runs."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.door = Door(settings, batches or BatchCount())
        async with app.state.door.open():
            yield

    paths: dict[object, str] = {route.endpoint: route.path for route in ROUTES}
    watched = Middleware(Watched, settings=settings, count=answers or AnswerCount(), routes=paths)
    cors = Middleware(
        CORSMiddleware,
        allow_origins=sorted(settings.origins),
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=[openai_routes.JOB_HEADER, "Location", "Retry-After"],
    )
    app = Starlette(
        routes=ROUTES,
        middleware=[watched, *([cors] if settings.origins else []), Middleware(Discreet)],
        exception_handlers={HerdError: _on_error, HTTPException: _on_http_error},
        lifespan=lifespan,
    )
    # It would lead to the name and the scheme of the request, which a client or a proxy has made up.
    app.router.redirect_slashes = False
    return app


async def _on_error(request: Request, error: Exception) -> Response:
    """Answer a request that ended with one of our own errors."""
    assert isinstance(error, HerdError)
    return _answer(request.scope, Problem.of(error))


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Answer a request that the router has refused: no such route, or no such method."""
    assert isinstance(error, HTTPException)
    code, message = _WRONG_ROUTES.get(error.status_code, ("bad_request", error.detail))
    return _answer(request.scope, Problem(error.status_code, code, message, headers=error.headers or {}))


class Discreet:
    """Answers for bugs. Only the kind of an error and its place are logged: its words may be a prompt's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun = False

        async def note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception as error:
            message = "the gateway has failed at this request"
            answer = _answer(scope, Problem(500, "internal_error", message, cause=place_of(error)))
            if not has_begun:  # else the server cuts it off, since it is not whole
                await answer(scope, receive, send)


def _answer(scope: Scope, problem: Problem) -> Response:
    notes_of(scope).fail(problem)
    return JSONResponse(problem.body, problem.status, headers=dict(problem.headers))
