"""The page: files of this package, shown to anybody. They hold no data; what they ask for needs a key."""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from llama_herd.tasks.gateway.call import context_of
from llama_herd.tasks.gateway.problem import not_found

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

#: Nothing from other hosts, nothing inline, and in no other page's frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",  # asked for each time, sent only when it has changed
}


class PageFile(NamedTuple):
    """One file of the page."""

    body: bytes
    media_type: str
    etag: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """All files by their names."""
    folder = resources.files("llama_herd.tasks.gateway") / "page"
    found = {one.name: one.read_bytes() for one in folder.iterdir()}
    return {
        name: PageFile(
            body, MEDIA_TYPES[name.rpartition(".")[2]], f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        )
        for name, body in found.items()
    }


async def show_page(request: Request) -> Response:
    """The page itself."""
    await context_of(request).authenticator.check_key(request, needs_any=True)
    return _answer(request, page_files()["index.html"])


async def show_page_file(request: Request) -> Response:
    """A script, a style or a picture of the page."""
    await context_of(request).authenticator.check_key(request, needs_any=True)
    file = page_files().get(request.path_params["name"])
    if file is None:
        raise not_found("the page has no such file")
    return _answer(request, file)


def _answer(request: Request, file: PageFile) -> Response:
    headers = {**HEADERS, "ETag": file.etag}
    known = request.headers.get("if-none-match", "").split(",")
    if file.etag in (one.strip().removeprefix("W/") for one in known):  # weak: a proxy has packed the body
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.media_type)
