"""Takes a file in: its bytes go to the storage as they come, and its record is made when they are safe."""

import asyncio
import secrets
from collections.abc import AsyncIterator

from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from llama_herd.errors import InvalidJob
from llama_herd.tasks.gateway.desk import Desk
from llama_herd.tasks.gateway.errors import Problem, bad_request
from llama_herd.tasks.gateway.form import Form
from llama_herd.tasks.gateway.identity import Caller
from llama_herd.tasks.gateway.limits import CLOSE
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.gateway.stores import files_of, too_much
from llama_herd.tasks.ledger.redis_call import ask
from llama_herd.tasks.ledger.stored_files import INPUT, Full, NewFile, Quota, StoredFile
from llama_herd.tasks.openai.batch_object import ExpiresAfter
from llama_herd.tasks.storage.storage import Draft, Place, Storage
from llama_herd.tasks.wrong_fields import field_errors

#: Bytes that are written together.
PIECE_BYTES = 1 << 20

#: Most bytes of a form that are not the file's: fields, heads, and what comes before and after.
MAX_OTHER_BYTES = 1 << 17

_PURPOSE, _ANCHOR, _SECONDS = "purpose", "expires_after[anchor]", "expires_after[seconds]"


async def upload(request: Request, caller: Caller, desk: Desk, storage: Storage) -> StoredFile:
    """Store the file of a form, and return its record. Raises Problem, StorageUnavailable."""
    form = Form(request.headers.get("content-type", ""))
    files = await asyncio.to_thread(files_of, storage, caller.tenant)
    place = Place(caller.tenant, f"file-{secrets.token_hex(12)}")
    await desk.run(ask(files.begin(place.name)))
    num_bytes = await _store(request, form, storage, place, desk.settings)
    life_ms = _life_ms(form, desk.settings)
    file = NewFile(place.name, form.filename or "", INPUT, num_bytes, caller.fingerprint or "", life_ms)
    added = await desk.run(ask(files.add(file, *quotas(desk.settings))))
    if isinstance(added, Full):
        await asyncio.to_thread(storage.delete, place)
        await desk.run(ask(files.deleted(file.id)))
        raise too_much(added, "delete files", "file")
    return added


def quotas(settings: GatewaySettings) -> tuple[Quota, Quota]:
    """The quotas of a tenant and a key: of files, and of their bytes."""
    return (
        Quota(settings.gateway_max_tenant_files, settings.gateway_max_key_files),
        Quota(settings.gateway_max_tenant_bytes, settings.gateway_max_key_bytes),
    )


async def _store(
    request: Request, form: Form, storage: Storage, place: Place, settings: GatewaySettings
) -> int:
    """Write the file's bytes, and return their number. Fields that are wrong are told before it is kept."""
    context = storage.draft(place)
    draft = await asyncio.to_thread(context.__enter__)
    try:
        await _receive(request, form, draft, settings)
        form.close()
        _check_fields(form)
        await asyncio.to_thread(draft.keep)
        return draft.num_bytes
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def _receive(request: Request, form: Form, draft: Draft, settings: GatewaySettings) -> None:
    most, piece, num_bytes, num_others = settings.gateway_file_bytes, bytearray(), 0, 0
    async for part in _body(request, settings.gateway_idle_s):
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
            await asyncio.to_thread(draft.write, bytes(piece))
            piece.clear()
    await asyncio.to_thread(draft.write, bytes(piece))


async def _body(request: Request, idle_s: float) -> AsyncIterator[bytes]:
    """The body, as long as something comes. Raises Problem."""
    parts = aiter(request.stream())
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
        raise bad_request("the body is not whole") from None


def _check_fields(form: Form) -> None:
    """Raise Problem for a field that is missing, wrong or unknown."""
    purpose = form.fields.get(_PURPOSE)
    if purpose != INPUT:
        raise bad_request(f"must be {INPUT}: files have no other use here", param=_PURPOSE)
    for name in form.fields:
        if name not in (_PURPOSE, _ANCHOR, _SECONDS):
            raise bad_request("unknown field", param=name if name.isidentifier() else "?")
    _expires_after(form)


def _expires_after(form: Form) -> ExpiresAfter | None:
    """Read when the form wants the file to expire. Raises InvalidJob."""
    anchor, seconds = form.fields.get(_ANCHOR), form.fields.get(_SECONDS)
    if anchor is None and seconds is None:
        return None
    given = {"anchor": anchor, "seconds": int(seconds) if seconds and seconds[:9].isdecimal() else seconds}
    try:
        return ExpiresAfter.model_validate(given)
    except ValidationError as error:
        raise InvalidJob(field_errors(error, ExpiresAfter.model_fields)) from None


def _life_ms(form: Form, settings: GatewaySettings) -> int | None:
    expires = _expires_after(form)
    return 1000 * (settings.gateway_file_life_s if expires is None else expires.seconds) or None
