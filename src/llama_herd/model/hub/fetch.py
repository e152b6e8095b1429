"""Brings a model of Hugging Face into the cache that other tools share, and finds it there.

Files come by plain HTTP: what has come of a download that broke off stays in the cache, and the next one goes
on behind it. A file that has come whole is checked by its digest before anybody can see it.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from llama_herd.errors import HubUnavailable, ModelFileError
from llama_herd.model.hub.choice import ChosenFiles, Room, choose
from llama_herd.model.hub.listing import HubFile, RepoListing, cache_folder, storage_folder
from llama_herd.model.hub.name import HubName
from llama_herd.size_text import size_text

#: Hears how many bytes of all files have come.
ProgressHook = Callable[[int, int], None]

HASHED_BYTES = 1 << 20


@dataclass(frozen=True)
class HubModel:
    """A model in the cache."""

    path: Path  # of its GGUF file, its first part, or its folder
    choice: ChosenFiles
    is_new: bool = False  # whether some of it has just been fetched


def find_model(name: HubName, room: Callable[[], Room]) -> HubModel | None:
    """The model, if it is in the cache whole; nobody is asked for it."""
    listing = RepoListing.from_cache(name.repo)
    if listing is None:
        return None
    try:
        choice = choose(listing, name, room)
    except ModelFileError:  # what is wanted is not here, or not all of it
        return None
    return HubModel(listing.folder / choice.name, choice)


def fetch_model(
    name: HubName, room: Callable[[], Room], tell: Callable[[ChosenFiles], None], note: ProgressHook
) -> HubModel:
    """Ask the hub for the model as it is now, and fetch what of it is missing; without the hub, find it.

    `tell` hears what is going to be fetched. Raises HubUnavailable, and ModelFileError with the fix.
    """
    try:
        with _translated(name.repo):
            listing = RepoListing.from_hub(name.repo)
    except HubUnavailable as error:
        found = find_model(name, room)
        if found is None:
            raise HubUnavailable(f"{error}, and {name} is not in the cache, {cache_folder()}") from None
        return found
    choice = choose(listing, name, room)
    missing = [file for file in choice.files if not (listing.folder / file.name).is_file()]
    done = choice.num_bytes - sum(file.num_bytes for file in missing)
    if missing:
        tell(choice)
    for file in missing:
        with _translated(name.repo):
            _fetch_file(listing, file, _counting_all(done, choice.num_bytes, note))
        done += file.num_bytes
    with _translated(name.repo):
        _note_newest_commit(listing)
    return HubModel(listing.folder / choice.name, choice, bool(missing))


def _counting_all(done: int, num_all: int, note: ProgressHook) -> Callable[[int], None]:
    """A listener to one file's bytes, which tells those of all files."""
    return lambda num_bytes: note(done + num_bytes, num_all)


def _fetch_file(listing: RepoListing, file: HubFile, note: Callable[[int], None]) -> None:
    """Fetch a file unless its bytes are here, and enter it in the snapshot of its commit."""
    from huggingface_hub import constants

    if file.num_bytes > constants.MAX_HTTP_DOWNLOAD_SIZE:
        raise ModelFileError(
            f"{file.name}: {size_text(file.num_bytes)} in one file do not come by plain HTTP. Fix: "
            f"hf download {listing.repo} {file.name}, after which it is found in the cache"
        )
    blob = storage_folder(listing.repo) / "blobs" / file.digest
    _download(listing, file, blob, note)
    entry = listing.folder / file.name
    entry.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):  # another process was here meanwhile
        entry.symlink_to(os.path.relpath(blob, entry.parent))


def _note_newest_commit(listing: RepoListing) -> None:
    """Note in the cache that this commit is the newest one."""
    ref = storage_folder(listing.repo) / "refs" / "main"
    ref.parent.mkdir(parents=True, exist_ok=True)
    written = ref.with_name(f"main.{os.getpid()}")
    written.write_text(listing.commit)
    written.replace(ref)


def _download(listing: RepoListing, file: HubFile, blob: Path, note: Callable[[int], None]) -> None:
    """Fetch a file to where the cache has it, behind what has come of it before."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import WeakFileLock, build_hf_headers

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
            _check_room(part.parent, file, file.num_bytes - here)
            note(here)
            http_get(
                hf_hub_url(listing.repo, file.name, revision=listing.commit),
                out,
                resume_size=here,
                headers=build_hf_headers(),
                expected_size=file.num_bytes,
                tqdm_class=_meter(note),
            )
        _check_digest(part, file)
        part.replace(blob)


def _check_room(folder: Path, file: HubFile, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if num_bytes > free:
        raise ModelFileError(
            f"{file.name}: {size_text(num_bytes)} are to come, but {folder} has {size_text(free)} free. "
            "Fix: make room there, or set HF_HOME to a folder elsewhere"
        )


def _check_digest(path: Path, file: HubFile) -> None:
    """Remove a file that is not what the hub says, and raise ModelFileError."""
    found = _digest(path, len(file.digest), file.num_bytes)
    if found != file.digest:
        path.unlink()
        raise ModelFileError(
            f"{file.name}: has come with the checksum {found}, but the hub says {file.digest}, so it was "
            "removed. Fix: fetch it again; if that does not help, something on the way, such as a proxy, "
            "changes it"
        )


def _digest(path: Path, num_digits: int, num_bytes: int) -> str:
    """SHA-256 of a file; for 40 digits the SHA-1 by which git calls it."""
    digest = hashlib.sha256() if num_digits == 64 else hashlib.sha1(b"blob %d\0" % num_bytes)
    with path.open("rb") as file:
        while chunk := file.read(HASHED_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _meter(note: Callable[[int], None]) -> Any:
    """A class that the hub's code takes for its bar, and that only counts the bytes of one file."""

    class Meter:
        def __init__(self, *, initial: int = 0, **_: object) -> None:
            self.num_done = initial

        def update(self, num_bytes: float | None = 1) -> None:
            self.num_done += int(num_bytes or 0)
            note(self.num_done)

        def __enter__(self) -> Self:
            return self

        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
        ) -> None: ...

    return Meter


@contextmanager
def _translated(repo: str) -> Iterator[None]:
    """Raise errors of the hub's code as ours. Their own texts hold URLs, which may be signed."""
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.GatedRepoError:
        raise ModelFileError(
            f"{repo}: is given to those only who have accepted its terms. Fix: accept them at "
            f"{constants.ENDPOINT}/{repo}, and set HF_TOKEN to a token of the same account"
        ) from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise ModelFileError(
            f"{repo}: there is no such repository, or it is private. Fix: check the name, or set HF_TOKEN to "
            "a token that may read it"
        ) from None
    except errors.HfHubHTTPError as error:
        raise _refused(repo, error.response.status_code) from None
    except (errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError):
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "it does not answer"
        raise HubUnavailable(f"{constants.ENDPOINT} is not asked: {reason}") from None
    except errors.HTTPError as error:  # of the transport: no name, no connection, a proxy that refuses
        raise HubUnavailable(f"{constants.ENDPOINT} cannot be reached ({type(error).__name__})") from None
    except OSError as error:
        if error.errno is None:  # the hub's code, of fewer bytes than were announced
            raise HubUnavailable(f"{constants.ENDPOINT} broke off") from None
        raise ModelFileError(f"{repo}: cannot be kept in {cache_folder()}: {error.strerror}") from None


def _refused(repo: str, status: int) -> ModelFileError | HubUnavailable:
    if status in (401, 403):
        return ModelFileError(f"{repo}: the hub refuses the token (status {status}). Fix: set HF_TOKEN anew")
    return HubUnavailable(f"the hub answered with status {status} when asked for {repo}")
