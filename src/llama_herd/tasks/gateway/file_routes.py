"""OpenAI's endpoints of files."""

import re
from collections.abc import AsyncGenerator
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.file_upload import files_of, store_upload
from llama_herd.tasks.gateway.problem import Problem, bad_request, not_found
from llama_herd.tasks.gateway.queries import after_of, limit_of, order_of
from llama_herd.tasks.gateway.sse import prepend
from llama_herd.tasks.gateway.storage_threads import in_thread, in_threads
from llama_herd.tasks.ledger.redis_call import both, redis_time_ms
from llama_herd.tasks.ledger.stored_files import INPUT, PLACE_MS, StoredFile, StoredFiles
from llama_herd.tasks.openai.file_object import FileDeleted, FileList, FileObject
from llama_herd.tasks.security.api_keys import KeyRole
from llama_herd.tasks.storage.storage import Storage, StoragePlace

_FILE_ID = re.compile(r"file-[0-9a-f]{24}")
#: Bytes that are read together.
PIECE_BYTES = 1 << 18
#: Most files that a page may be asked to hold.
MAX_LIMIT = 10_000


async def create_file(call: Call) -> FileObject:
    """Store a file for a batch, as it comes."""
    with call.context.concurrency.slots(call.caller.tenant):
        return FileObject.from_file(await store_upload(call))


async def list_files(call: Call) -> FileList:
    """The tenant's files."""
    files = await files_of(call)
    after, limit = after_of(call), limit_of(call, MAX_LIMIT, MAX_LIMIT)
    order, purpose = order_of(call), call.query_params.get("purpose", "")
    page = await call.queue.run(files.page(after, limit, order, purpose))
    if page is None:
        raise bad_request("no such file", param="after")
    data = tuple(FileObject.from_file(StoredFile.from_fields(fields)) for fields in page.records)
    return FileList(data=data, has_more=page.has_more)


async def get_file(call: Call) -> FileObject:
    """What is known of a file. Only producers see what was uploaded."""
    _, file = await _file_of(call)
    return FileObject.from_file(file)


async def delete_file(call: Call) -> FileDeleted:
    """Delete a file, unless a batch reads it."""
    files, file = await _file_of(call)
    match await call.queue.run(files.drop(file.id)):
        case "in_use":
            message = "a batch reads this file. Fix: wait for its end, or cancel it"
            raise Problem(409, "file_in_use", message)
        case "unknown":
            raise no_file()
    await in_thread(call.context.storage.delete, StoragePlace(files.tenant, file.id))
    await call.queue.run(files.put_off(file.id, PLACE_MS))
    return FileDeleted(id=file.id)


async def get_file_content(call: Call) -> Response:
    """The bytes of a file. Only producers see what was uploaded."""
    files, file = await _file_of(call)
    headers = {
        # An answer that the storage cannot end is then cut off, and does not look whole.
        "content-length": str(file.num_bytes),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(file.name, safe='')}",
        "x-content-type-options": "nosniff",
    }
    if call.method == "HEAD":
        return Response(headers=headers, media_type="application/octet-stream")
    parts = _read_pieces(call.context.storage, StoragePlace(files.tenant, file.id))
    first = await anext(parts, b"")  # so that the status says it if the file is lost
    return StreamingResponse(prepend(parts, first), headers=headers, media_type="application/octet-stream")


async def _read_pieces(storage: Storage, place: StoragePlace) -> AsyncGenerator[bytes]:
    """The bytes of a file, piece by piece, read in other threads."""
    async with in_threads(storage.read(place)) as file:
        while part := await in_thread(file.read, PIECE_BYTES):
            yield part


async def _file_of(call: Call) -> tuple[StoredFiles, StoredFile]:
    """The file in the path, if it is there and the caller may see it: a subscriber sees outputs alone."""
    file_id: str = call.path_params["id"]
    if not _FILE_ID.fullmatch(file_id):
        raise no_file()
    files = await files_of(call)
    file, at_ms = await call.queue.run(both(files.get(file_id), redis_time_ms()))
    if file is None or (file.expires_ms is not None and file.expires_ms <= at_ms):
        raise no_file()
    if file.storage != files.storage:
        raise file_elsewhere()
    if file.purpose == INPUT and not call.caller.role.may(KeyRole.PRODUCER):
        raise Problem(403, "forbidden", "a key of the role subscriber reads answers alone")
    return files, file


def no_file(param: str | None = None) -> Problem:
    return not_found("no such file: it was never uploaded, it was deleted, or it has expired", param=param)


def file_elsewhere() -> Problem:
    """The problem of a file whose bytes are in another gateway's storage."""
    message = (
        "the bytes of this file are in another gateway's storage. "
        "Fix: give all gateways the same HERD_GATEWAY_FILES"
    )
    return Problem(503, "files_elsewhere", message)
