"""The files of a repository: those that the hub lists, or those that are in the cache."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Self

from llama_herd.errors import ModelFileError
from llama_herd.model.hub.request import answer_of, pieces_of

#: More files than any model has.
MAX_FILES = 20_000
#: More bytes than their list has, and a longer time than it takes.
MAX_LIST_BYTES, MAX_LIST_S = 16 << 20, 120.0
#: More values than their list has, or an index of weights.
MAX_LIST_VALUES = 1 << 20
#: Longest name of a file that the common systems keep.
MAX_NAME_BYTES = 255

#: A plain relative path, which cannot lead out of a folder: the hub's names are not ours.
_SAFE_NAME = re.compile(r"(?!.*(?:^|/)\.{1,2}(?:/|$))[^/\\\x00-\x1f\x7f]+(?:/[^/\\\x00-\x1f\x7f]+)*")
_COMMIT = re.compile(r"[0-9a-f]{40}")
#: SHA-256 of a large file, or git's SHA-1 of a small one. Both name the file in the cache.
_DIGEST = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")


@dataclass(frozen=True)
class HubFile:
    """A file of a repository."""

    name: str  # with its folders
    num_bytes: int
    digest: str = ""  # of what the hub lists


@dataclass(frozen=True)
class RepoListing:
    """The files of a repository at a commit."""

    repo: str
    commit: str
    files: tuple[HubFile, ...]

    @classmethod
    def from_hub(cls, repo: str) -> Self:
        """Ask the hub. Raises what `answer_of` does, and ModelFileError for an answer that is wrong."""
        from huggingface_hub import constants
        from huggingface_hub.utils import validate_repo_id

        validate_repo_id(repo)
        content = bytearray()
        until_s = monotonic() + MAX_LIST_S
        with answer_of(f"{constants.ENDPOINT}/api/models/{repo}?blobs=true") as answer:
            for piece in pieces_of(answer):
                content += piece
                if len(content) > MAX_LIST_BYTES or monotonic() > until_s:
                    raise _unusable(repo)
        listed = parsed(bytes(content))
        commit, siblings = listed.get("sha"), listed.get("siblings") or []
        if not (isinstance(commit, str) and _COMMIT.fullmatch(commit) and isinstance(siblings, list)):
            raise _unusable(repo)
        files = tuple(file for one in siblings[:MAX_FILES] if (file := _listed_file(one)) is not None)
        if len(siblings) > MAX_FILES or (siblings and not files):
            raise _unusable(repo)
        return cls(repo, commit, files)

    @classmethod
    def from_cache(cls, repo: str) -> Self | None:
        """The files that are in the cache, of the commit that was last fetched; None: there is nothing."""
        commit_path = storage_folder(repo) / "refs" / "main"
        commit = commit_path.read_text().strip() if commit_path.is_file() else ""
        if _COMMIT.fullmatch(commit) is None:
            return None
        folder = storage_folder(repo) / "snapshots" / commit
        here = (path for path in sorted(folder.rglob("*")) if path.is_file())  # no link that leads nowhere
        files = (HubFile(path.relative_to(folder).as_posix(), path.stat().st_size) for path in here)
        return cls(repo, commit, tuple(files))

    @property
    def folder(self) -> Path:
        """Where the files are in the cache."""
        return storage_folder(self.repo) / "snapshots" / self.commit


def parsed(content: bytes) -> dict[str, Any]:
    """An object of JSON from the hub, counted before it is read; empty if it is none."""
    if sum(map(content.count, (b",", b"[", b"{"))) > MAX_LIST_VALUES:
        return {}
    try:
        listed = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return listed if isinstance(listed, dict) else {}


def _listed_file(one: object) -> HubFile | None:
    """A file as the hub lists it; None if it is not one that can be fetched and kept."""
    if not isinstance(one, dict):
        return None
    lfs = one.get("lfs")
    digest = lfs.get("sha256") if isinstance(lfs, dict) else one.get("blobId")
    name, num_bytes = one.get("rfilename"), one.get("size")
    if not (isinstance(name, str) and isinstance(digest, str) and type(num_bytes) is int):
        return None
    is_safe = (
        0 <= num_bytes < 1 << 63
        and name.isprintable()
        and len(name.encode(errors="replace")) <= MAX_NAME_BYTES
        and _SAFE_NAME.fullmatch(name)
    )
    return HubFile(name, num_bytes, digest) if is_safe and _DIGEST.fullmatch(digest) else None


def _unusable(repo: str) -> ModelFileError:
    return ModelFileError(
        f"{repo}: what should be the hub does not answer as the hub does. Fix: check HF_ENDPOINT"
    )


def cache_folder() -> Path:
    """The cache that all tools of Hugging Face share: HF_HUB_CACHE, else below HF_HOME."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def storage_folder(repo: str) -> Path:
    """The folder of a repository in the cache."""
    return cache_folder() / f"models--{repo.replace('/', '--')}"
