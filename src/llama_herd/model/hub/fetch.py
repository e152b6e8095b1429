"""Brings a model of Hugging Face into the cache that other tools share, and finds it there.

Files come by plain HTTP: what has come of a download that broke off stays in the cache, and the next one goes
on behind it. A file that has come whole is checked by its digest before anybody can see it.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import sleep
from typing import BinaryIO

from llama_herd.errors import HubUnavailable, ModelFileError
from llama_herd.model.hub.choice import INDEX, Choose, ChosenFiles, Room, choose, size_text
from llama_herd.model.hub.listing import HubFile, RepoListing, cache_folder, storage_folder
from llama_herd.model.hub.name import HubName
from llama_herd.model.hub.request import (
    AskAgain,
    announced_bytes,
    answer_of,
    begin_of,
    pieces_of,
    translated,
)

#: Hears how many bytes of all files have come.
ProgressHook = Callable[[int, int], None]
#: Sees a model before most of it comes: a folder without weights, or a GGUF file's first bytes; and its name.
Check = Callable[[Path, str], None]

#: More than the header of any GGUF file has.
BEGIN_BYTES = 32 << 20

#: How often a file is asked for: so often, and once more for so many bytes that have come of it.
MAX_TRIES, TRY_BYTES = 5, 16 << 20
LONGEST_PAUSE_S = 8.0


@dataclass(frozen=True)
class HubModel:
    """A model in the cache."""

    path: Path  # of its GGUF file, its first part, or its folder
    choice: ChosenFiles
    is_new: bool = False  # whether some of it has just been fetched


def find_model(name: HubName, room: Callable[[], Room], choose: Choose = choose) -> HubModel | None:
    """The model, if it is in the cache whole; nobody is asked for it. choose: which of its files."""
    listing = RepoListing.from_cache(name.repo)
    if listing is None:
        return None
    try:
        choice = choose(listing, name, room)
    except ModelFileError:  # what is wanted is not here, or not all of it
        return None
    return HubModel(listing.folder / choice.name, choice)


def fetch_model(
    name: HubName,
    room: Callable[[], Room],
    tell: Callable[[ChosenFiles], None],
    note: ProgressHook,
    choose: Choose = choose,
    check: Check = lambda path, name: None,
) -> HubModel:
    """Ask the hub for the model as it is now, and fetch what of it is missing; without the hub, find it.

    `tell` hears what is going to be fetched. Raises HubUnavailable, ModelFileError with the fix, and what
    `check` does.
    """
    try:
        with translated(name.repo, cache_folder()):
            listing = RepoListing.from_hub(name.repo)
    except HubUnavailable as error:
        found = find_model(name, room, choose)
        if found is None:
            raise HubUnavailable(f"{error}, and {name} is not in the cache, {cache_folder()}") from None
        return found
    choice = choose(listing, name, room)
    missing = _missing(listing, choice)
    if index := next((file for file in missing if file.name == INDEX), None):
        with translated(name.repo, cache_folder()):
            _fetch_file(listing, index, lambda _: None, None)
        choice = choose(listing, name, room)
        missing = _missing(listing, choice)
    if missing:
        tell(choice)
    with translated(name.repo, cache_folder()):
        _fetch_files(listing, choice, missing, note, check)
        _note_newest_commit(listing)
    return HubModel(listing.folder / choice.name, choice, bool(missing))


def _missing(listing: RepoListing, choice: ChosenFiles) -> list[HubFile]:
    """The chosen files that are not in the cache."""
    return [file for file in choice.files if not (listing.folder / file.name).is_file()]


def _fetch_files(
    listing: RepoListing, choice: ChosenFiles, missing: Sequence[HubFile], note: ProgressHook, check: Check
) -> None:
    """Fetch what of the chosen files is missing. `note` hears of the bytes of all."""
    done = choice.num_bytes - sum(file.num_bytes for file in missing)
    for file in missing:
        if file.name.endswith(".safetensors"):
            check(listing.folder, listing.repo)
        note_all = partial(_note_all, note, choice.num_bytes, done)
        _fetch_file(listing, file, note_all, check if file.name == choice.name else None)
        done += file.num_bytes


def _note_all(note: ProgressHook, num_all: int, done: int, num_bytes: int) -> None:
    note(done + num_bytes, num_all)


def _fetch_file(
    listing: RepoListing, file: HubFile, note: Callable[[int], None], check: Check | None
) -> None:
    """Fetch a file unless its bytes are here, and enter it in the snapshot of its commit."""
    from huggingface_hub import constants

    if file.num_bytes > constants.MAX_HTTP_DOWNLOAD_SIZE:
        raise ModelFileError(
            f"{file.name}: {size_text(file.num_bytes)} in one file do not come by plain HTTP. Fix: "
            f"hf download {listing.repo} {file.name}, after which it is found in the cache"
        )
    blob = storage_folder(listing.repo) / "blobs" / file.digest
    _download(listing, file, blob, note, check)
    entry = listing.folder / file.name
    entry.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # another process was here meanwhile
        entry.symlink_to(os.path.relpath(blob, entry.parent))


def _note_newest_commit(listing: RepoListing) -> None:
    """Note in the cache that this commit is the newest one, unless it says so."""
    ref = storage_folder(listing.repo) / "refs" / "main"
    if ref.is_file() and ref.read_bytes() == listing.commit.encode():  # the cache may be read-only
        return
    ref.parent.mkdir(parents=True, exist_ok=True)
    written = ref.with_name(f"main.{os.getpid()}")
    written.write_text(listing.commit)
    written.replace(ref)


def _download(
    listing: RepoListing, file: HubFile, blob: Path, note: Callable[[int], None], check: Check | None
) -> None:
    """Fetch a file to where the cache has it, behind what has come of it before."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import WeakFileLock

    lock = cache_folder() / ".locks" / storage_folder(listing.repo).name / f"{file.digest}.lock"
    part = blob.with_name(f"{blob.name}.incomplete")
    for folder in (lock.parent, part.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):  # the hub's own, so that other tools wait, too
        if blob.exists():
            return
        with part.open("ab") as out:
            if out.tell() > file.num_bytes:
                out.truncate(0)
            here = out.seek(0, os.SEEK_END)
            num_left, free = file.num_bytes - here, shutil.disk_usage(part.parent).free
            if num_left > free:
                raise ModelFileError(
                    f"{file.name}: {size_text(num_left)} are to come, but {part.parent} has "
                    f"{size_text(free)} free. Fix: make room there, or set HF_HOME to a folder elsewhere"
                )
            note(here)
            url = hf_hub_url(listing.repo, file.name, revision=listing.commit)
            if check is not None:
                _receive(url, out, file, note, min(BEGIN_BYTES, file.num_bytes))
                out.flush()
                check(part, file.name)
            _receive(url, out, file, note, file.num_bytes)
        _check_digest(part, file)
        part.replace(blob)


def _receive(url: str, out: BinaryIO, file: HubFile, note: Callable[[int], None], end: int) -> None:
    """Fetch what is missing of a file up to byte `end`, or some more, again where a connection breaks.

    Raises what `answer_of` does.
    A hub that breaks off again and again is given up: only new bytes earn it more tries.
    """
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    most_bytes, num_tries = out.tell(), 0
    while out.tell() < end:
        try:
            _receive_some(url, out, file, note, end)
            problem: Exception = HubUnavailable(f"the hub broke off within {file.name}")
        except HfHubHTTPError:
            raise
        except (AskAgain, HTTPError) as error:
            problem = error
        if out.seek(0, os.SEEK_END) >= end:
            return
        most_bytes, num_tries = max(most_bytes, out.tell()), num_tries + 1
        if num_tries > MAX_TRIES + most_bytes // TRY_BYTES:
            raise problem
        sleep(min(num_tries, LONGEST_PAUSE_S))


def _receive_some(url: str, out: BinaryIO, file: HubFile, note: Callable[[int], None], end: int) -> None:
    """Write what one answer brings. Raises ModelFileError before more comes than the hub has listed."""
    with answer_of(url, begin=out.tell()) as answer:
        begin = begin_of(answer)
        if begin != out.tell():  # all of it, or as much as another hub has
            out.truncate(0)
            if begin:
                raise AskAgain(f"the hub has fewer bytes of {file.name} than it says")
        num_left = file.num_bytes - begin
        if announced_bytes(answer) > num_left:
            raise _too_much(file, out)
        for piece in pieces_of(answer):
            num_left -= len(piece)
            if num_left < 0:
                raise _too_much(file, out)
            out.write(piece)
            note(file.num_bytes - num_left)
            if end <= file.num_bytes - num_left < file.num_bytes:
                return


def _too_much(file: HubFile, out: BinaryIO) -> ModelFileError:
    out.truncate(0)
    return ModelFileError(
        f"{file.name}: more bytes are to come than the {file.num_bytes} that the hub has listed, so none is "
        "kept. Fix: fetch it again; if that does not help, check HF_ENDPOINT"
    )


def _check_digest(path: Path, file: HubFile) -> None:
    """Remove a file that is not what the hub says, and raise ModelFileError.

    A digest of 64 digits is the SHA-256, one of 40 the SHA-1 by which git calls the file.
    """
    of_git = partial(hashlib.sha1, b"blob %d\0" % file.num_bytes)
    with path.open("rb") as content:
        found = hashlib.file_digest(content, hashlib.sha256 if len(file.digest) == 64 else of_git).hexdigest()
    if found != file.digest:
        path.unlink()
        raise ModelFileError(
            f"{file.name}: has come with the checksum {found}, but the hub says {file.digest}, so it was "
            "removed. Fix: fetch it again; if that does not help, something on the way, such as a proxy, "
            "changes it"
        )
