"""The gateway as an ASGI application."""

import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from llama_herd.errors import HerdError
from llama_herd.tasks.gateway import (
    docs_page,
    health,
    herd_routes,
    job_routes,
    openai_routes,
    openapi,
    page_files,
)
from llama_herd.tasks.gateway.door import Door
from llama_herd.tasks.gateway.errors import Problem
from llama_herd.tasks.gateway.settings import GatewaySettings

log = logging.getLogger(__name__)

ROUTES = (
    Route("/", page_files.show_page, methods=["GET"]),
    Route("/page/{name}", page_files.show_file, methods=["GET"]),
    Route("/docs", docs_page.show_page, methods=["GET"]),
    Route("/openapi.json", openapi.show_document, methods=["GET"]),
    Route("/health/live", health.live, methods=["GET"]),
    Route("/health/ready", health.ready, methods=["GET"]),
    Route("/v1/herd", herd_routes.show_herd, methods=["GET"]),
    Route("/v1/models", openai_routes.models, methods=["GET"]),
    Route("/v1/models/{model}", openai_routes.model, methods=["GET"]),
    Route("/v1/completions", openai_routes.completions, methods=["POST"]),
    Route("/v1/chat/completions", openai_routes.chat_completions, methods=["POST"]),
    Route("/v1/jobs", job_routes.submit, methods=["POST"]),
    Route("/v1/jobs/{id}", job_routes.show, methods=["GET"]),
    Route("/v1/jobs/{id}", job_routes.cancel, methods=["DELETE"]),
    Route("/v1/jobs/{id}/events", job_routes.events, methods=["GET"]),
    Route("/v1/jobs/{id}/purge", job_routes.purge, methods=["POST"]),
)


def make_app(settings: GatewaySettings) -> Starlette:
    """The application. It holds no state but connections."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.door = Door(settings)
        async with app.state.door.open():
            yield

    cors = Middleware(
        CORSMiddleware,
        allow_origins=sorted(settings.origins),
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=[openai_routes.JOB_HEADER, "Location", "Retry-After"],
    )
    return Starlette(
        routes=ROUTES,
        middleware=[cors] if settings.origins else [],
        exception_handlers={HerdError: _on_error, HTTPException: _on_http_error, Exception: _on_bug},
        lifespan=lifespan,
    )


async def _on_error(request: Request, error: Exception) -> Response:
    """One of our own errors."""
    assert isinstance(error, HerdError)
    return _answer(Problem.of(error))


async def _on_http_error(request: Request, error: Exception) -> Response:
    """What the router found: no such route, or no such method."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
    return _answer(Problem(error.status_code, code, error.detail, headers=error.headers or {}))


async def _on_bug(request: Request, error: Exception) -> Response:
    """Anything else. Only the kind of the error and its place are logged: its words may be a prompt's."""
    places = traceback.extract_tb(error.__traceback__)[-3:]
    where = " < ".join(f"{place.filename}:{place.lineno}" for place in reversed(places))
    log.error("a request failed: %s at %s", type(error).__name__, where)
    return _answer(Problem(500, "internal_error", "the gateway has failed at this request"))


def _answer(problem: Problem) -> Response:
    return JSONResponse(problem.body, problem.status, headers=dict(problem.headers))
