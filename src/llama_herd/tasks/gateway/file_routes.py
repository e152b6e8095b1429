"""OpenAI's endpoints of files."""

import asyncio
from collections.abc import AsyncIterator
from typing import Literal, cast
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from llama_herd.tasks.gateway.context import GatewayContext, context_of
from llama_herd.tasks.gateway.file_upload import store_upload
from llama_herd.tasks.gateway.problem import Problem, bad_request
from llama_herd.tasks.gateway.stores import checked_file_id, file_elsewhere, files_of, no_file
from llama_herd.tasks.ledger.redis_call import both
from llama_herd.tasks.ledger.stored_files import INPUT, StoredFile, StoredFiles, redis_time_ms
from llama_herd.tasks.openai.file_object import FileDeleted, FileList, FileObject
from llama_herd.tasks.security.api_keys import KeyRole
from llama_herd.tasks.storage.storage import Storage, StoragePlace

#: Bytes that are read together.
PIECE_BYTES = 1 << 18
#: Most files that a page may be asked to hold.
MAX_LIMIT = 10_000


async def create_file(request: Request) -> Response:
    """Store the file that a form uploads."""
    context = context_of(request)
    caller, client = await context.admit(request, KeyRole.PRODUCER)
    with context.concurrency.slots(caller.tenant):
        file = await store_upload(request, caller, client, context.storage)
    return JSONResponse(FileObject.from_file(file).model_dump())


async def list_files(request: Request) -> Response:
    """A page of the tenant's files."""
    context = context_of(request)
    caller, client = await context.admit(request, KeyRole.PRODUCER)
    files = await asyncio.to_thread(files_of, context.storage, caller.tenant)
    after, limit = after_of(request), limit_of(request, MAX_LIMIT, MAX_LIMIT)
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise bad_request("must be asc or desc", param="order")
    purpose = request.query_params.get("purpose", "")
    page = await client.run(files.page(after, limit, cast(Literal["asc", "desc"], order), purpose))
    if page is None:
        raise bad_request("no such file", param="after")
    return JSONResponse(FileList.from_page(page).model_dump())


async def get_file(request: Request) -> Response:
    """Answer with the object of a file."""
    _, _, file = await _file_of(request)
    return JSONResponse(FileObject.from_file(file).model_dump())


async def delete_file(request: Request) -> Response:
    """Delete a file."""
    context, files, file = await _file_of(request, KeyRole.PRODUCER)
    client = context.clients.for_tenant(files.tenant)
    match await client.run(files.drop(file.id)):
        case "in_use":
            message = "a batch reads this file. Fix: wait for its end, or cancel it"
            raise Problem(409, "file_in_use", message)
        case "unknown":
            raise no_file()
    await asyncio.to_thread(context.storage.delete, StoragePlace(files.tenant, file.id))
    await client.run(files.note_deleted(file.id))
    return JSONResponse(FileDeleted(id=file.id).model_dump())


async def get_file_content(request: Request) -> Response:
    """The bytes of a file. If the storage loses them on the way, the answer is cut off: it has a length."""
    context, files, file = await _file_of(request)
    headers = {
        "content-length": str(file.num_bytes),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}",
        "x-content-type-options": "nosniff",
    }
    if request.method == "HEAD":
        return Response(headers=headers, media_type="application/octet-stream")
    parts = _read_pieces(context.storage, StoragePlace(files.tenant, file.id))
    first = await anext(parts, b"")  # so that the status says it if the file is lost
    return StreamingResponse(_prepend(first, parts), headers=headers, media_type="application/octet-stream")


async def _read_pieces(storage: Storage, place: StoragePlace) -> AsyncIterator[bytes]:
    """The bytes of a file, piece by piece, read in other threads."""
    opening = storage.read(place)
    file = await asyncio.to_thread(opening.__enter__)
    try:
        while part := await asyncio.to_thread(file.read, PIECE_BYTES):
            yield part
    finally:
        await asyncio.to_thread(opening.__exit__, None, None, None)


async def _prepend(first: bytes, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The parts with the one put back that was taken from them first."""
    yield first
    async for part in parts:
        yield part


async def _file_of(
    request: Request, needs: KeyRole = KeyRole.SUBSCRIBER
) -> tuple[GatewayContext, StoredFiles, StoredFile]:
    """The file in the path, if the caller may see it. Raises Problem.

    Subscribers see output files only. Another tenant's file counts as not there, as does an expired one.
    """
    context = context_of(request)
    caller, client = await context.admit(request, needs)
    file_id = checked_file_id(request.path_params["id"])
    files = await asyncio.to_thread(files_of, context.storage, caller.tenant)
    file, at_ms = await client.run(_record_and_time(files, file_id))
    if file is None or (file.expires_ms is not None and file.expires_ms <= at_ms):
        raise no_file()
    if file.storage != files.storage:
        raise file_elsewhere()
    if file.purpose == INPUT and not caller.role.may(KeyRole.PRODUCER):
        raise Problem(403, "forbidden", "a key of the role subscriber reads answers alone")
    return context, files, file


async def _record_and_time(files: StoredFiles, file_id: str) -> tuple[StoredFile | None, int]:
    """A dialogue: a file's record, and the time in milliseconds by the clock of Redis."""
    return await both(files.get(file_id), redis_time_ms())


def after_of(request: Request) -> str:
    """The id after which a page is to begin."""
    return request.query_params.get("after", "")[:64]


def limit_of(request: Request, default: int, most: int) -> int:
    """The number of entries that a page may hold. Raises Problem."""
    text = request.query_params.get("limit", str(default))
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= most):
        raise bad_request(f"must be a number from 1 to {most:,}", param="limit")
    return int(text)
