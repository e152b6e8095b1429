"""Uploads of files: the bytes go to the storage as they come, and the record is made when they are safe."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from llama_herd.errors import HerdError
from llama_herd.tasks.gateway.call import Call
from llama_herd.tasks.gateway.problem import CLOSE, Problem, bad_request, quota_exceeded
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.gateway.storage_threads import in_thread, in_threads
from llama_herd.tasks.ledger.redis_call import both
from llama_herd.tasks.ledger.stored_files import INPUT, NewFile, Quota, QuotaExceeded, StoredFile, StoredFiles
from llama_herd.tasks.openai.batch_object import ExpiresAfter
from llama_herd.tasks.openai.other_fields import shown_name
from llama_herd.tasks.storage.storage import Draft, StoragePlace

#: Fields of a form, and bytes of one.
MAX_FIELDS, MAX_FIELD_BYTES = 16, 1024
MAX_NAME_CHARS = 255
#: By RFC 2046.
MAX_BOUNDARY_BYTES = 70


class MultipartForm:
    """A parser: `feed` it with the body piece by piece, then `check_complete`, then use `fields`.

    filename: of the file; None until it has come. fields: the others, by name.
    """

    def __init__(self, content_type: str) -> None:
        """Raises Problem if the content type is not that of a form."""
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data":
            raise bad_request("the body must be multipart/form-data with a file", "invalid_form")
        if not 1 <= len(boundary) <= MAX_BOUNDARY_BYTES:
            message = f"the boundary must be 1 to {MAX_BOUNDARY_BYTES} bytes long, got {len(boundary)}"
            raise bad_request(message, "invalid_form", "Content-Type")
        self.filename: str | None = None
        self.fields: dict[str, str] = {}
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._part_data,
                "on_end": self._end_form,
            },
        )
        self._is_over = False
        self._is_file = False
        self._name = ""
        self._num_parts = 0
        self._file = bytearray()
        self._header = (bytearray(), bytearray())
        self._disposition = b""

    def feed(self, body: bytes) -> bytes:
        """Read a part of the body. Returns the bytes of the file in it. Raises Problem."""
        try:
            self._parser.write(body)
        except FormParserError:
            raise _incomplete_form() from None
        found = bytes(self._file)
        self._file.clear()
        return found

    def check_complete(self) -> None:
        """Raises Problem if the form is not whole, or has no file."""
        if not self._is_over:
            raise _incomplete_form()
        if self.filename is None:
            raise bad_request("must be a file", "missing_file", "file")

    def _begin_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_FIELDS:
            raise bad_request(f"the form must have at most {MAX_FIELDS} fields", "invalid_form")
        self._disposition = b""

    def _end_header(self) -> None:
        name, value = self._header
        if name.lower() == b"content-disposition":
            self._disposition = bytes(value)
        self._header = (bytearray(), bytearray())

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = _text(options, b"name")
        self._is_file = self._name == "file"
        if not self._is_file:
            if self._name in self.fields:
                raise bad_request("must not be given twice", "invalid_form", shown_name(self._name))
            self.fields[self._name] = ""
        elif self.filename is not None:
            raise bad_request("must be one file", "invalid_form", "file")
        else:
            # As it can be shown anywhere. It is never part of a path.
            name = "".join(filter(str.isprintable, _text(options, b"filename")))
            self.filename = name[:MAX_NAME_CHARS] or "file"

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._file += data[start:end]
            return
        text = self.fields[self._name] + data[start:end].decode(errors="replace")
        if len(text) > MAX_FIELD_BYTES:
            raise bad_request(
                f"must be at most {MAX_FIELD_BYTES} bytes long", "invalid_form", shown_name(self._name)
            )
        self.fields[self._name] = text

    def _end_form(self) -> None:
        self._is_over = True


def _incomplete_form() -> Problem:
    return bad_request("the form is not whole", "invalid_form")


def _text(options: Mapping[bytes, bytes], name: bytes) -> str:
    return options.get(name, b"").decode(errors="replace")


#: Bytes that are written together.
PIECE_BYTES = 1 << 20

#: Most bytes of a form that are not the file's: fields, heads, and what comes before and after.
MAX_OTHER_BYTES = 1 << 17

_NUMBER = re.compile("[0-9]{1,9}")
#: Counts bytes before they are written. Raises Problem if they are too many.
Reserve = Callable[[int], Awaitable[None]]

_PURPOSE, _ANCHOR, _SECONDS = "purpose", "expires_after[anchor]", "expires_after[seconds]"


async def files_of(call: Call) -> StoredFiles:
    """The files of the caller's tenant. Raises StorageUnavailable."""
    return StoredFiles(call.caller.tenant, await call.context.storage_id())


async def store_upload(call: Call) -> StoredFile:
    """Store the file of a form, and return its record. Raises Problem, StorageUnavailable."""
    settings, owner = call.context.settings, call.caller.fingerprint or ""
    quotas = (
        Quota(settings.gateway_max_tenant_files, settings.gateway_max_key_files),
        Quota(settings.gateway_max_tenant_bytes, settings.gateway_max_key_bytes),
    )
    form = MultipartForm(call.headers.get("content-type", ""))
    files = await files_of(call)
    place = StoragePlace(files.tenant, f"file-{secrets.token_hex(12)}")
    await call.queue.run(files.begin_upload(place.name))

    async def reserve(num: int) -> None:
        full = await call.queue.run(files.reserve(place.name, owner, num, quotas[1]))
        if full is not None:
            raise replace(quota_exceeded(full, "delete files", "file"), headers=CLOSE)

    try:
        async with in_threads(call.context.storage.draft(place)) as draft:
            await _copy_file(call, form, draft, reserve)
            form.check_complete()
            life_ms = _life_ms(form, settings)  # wrong fields raise before it is kept
            await in_thread(draft.keep)
    except BaseException:
        with suppress(HerdError):  # else it counts until the upload is known to be left behind
            await call.queue.run(both(files.drop(place.name), files.put_off(place.name)))
        raise
    file = NewFile(place.name, form.filename or "", INPUT, draft.num_bytes, owner, life_ms)
    added = await call.queue.run(files.add(file, *quotas))
    if isinstance(added, QuotaExceeded):
        await in_thread(call.context.storage.delete, place)
        await call.queue.run(files.note_deleted(file.id))
        raise quota_exceeded(added, "delete files", "file")
    return added


async def _copy_file(call: Call, form: MultipartForm, draft: Draft, reserve: Reserve) -> None:
    """Pass the file's bytes on from the body to the draft, within the limits. Raises Problem."""
    settings = call.context.settings
    most, piece, num_bytes, num_others = settings.gateway_file_bytes, bytearray(), 0, 0
    async for part in _body_parts(call, settings.gateway_idle_s):
        found = form.feed(part)
        num_bytes += len(found)
        num_others += len(part) - len(found)
        if num_others > MAX_OTHER_BYTES:
            message = f"the form must have at most {MAX_OTHER_BYTES:,} bytes beside the file's"
            raise Problem(400, "invalid_form", message, headers=CLOSE)
        if num_bytes > most:
            message = f"must be at most {most:,} bytes. Fix: split it, or set HERD_GATEWAY_FILE_BYTES"
            raise Problem(413, "file_too_large", message, "file", CLOSE)
        piece += found
        if len(piece) >= PIECE_BYTES:
            await reserve(len(piece))
            await in_thread(draft.write, bytes(piece))
            piece.clear()
    await reserve(len(piece))
    await in_thread(draft.write, bytes(piece))


async def _body_parts(call: Call, idle_s: float) -> AsyncIterator[bytes]:
    """The body as it comes. Raises Problem if nothing comes for `idle_s`."""
    parts = aiter(call.stream())
    try:
        while True:
            async with asyncio.timeout(idle_s):
                part = await anext(parts)
            yield part
    except StopAsyncIteration:
        return
    except TimeoutError:
        raise Problem(408, "timeout", "the body did not come in time", headers=CLOSE) from None
    except ClientDisconnect:
        raise bad_request("the connection ended before the body did") from None


def _life_ms(form: MultipartForm, settings: GatewaySettings) -> int | None:
    """How long the form says that the file is kept; None: for ever.

    Raises Problem and InvalidJob for a field that is missing, wrong or unknown.
    """
    if form.fields.get(_PURPOSE) != INPUT:
        raise bad_request(f"must be {INPUT}: files have no other use here", param=_PURPOSE)
    for name in form.fields:
        if name not in (_PURPOSE, _ANCHOR, _SECONDS):
            raise bad_request("unknown field", param=shown_name(name))
    anchor, seconds = form.fields.get(_ANCHOR), form.fields.get(_SECONDS)
    if anchor is None and seconds is None:
        return 1000 * settings.gateway_file_life_s or None
    is_number = seconds is not None and _NUMBER.fullmatch(seconds)
    given = {"anchor": anchor, "seconds": int(seconds) if seconds and is_number else seconds}
    return 1000 * ExpiresAfter.parse(given).seconds
