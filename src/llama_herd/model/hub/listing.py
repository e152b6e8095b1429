"""The files of a repository: those that the hub lists, or those that are in the cache."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path
from typing import Self

from llama_herd.errors import ModelFileError

#: More files than any model has.
MAX_FILES = 20_000

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
        """Ask the hub. Raises what huggingface_hub raises, and ModelFileError for an answer that is wrong."""
        from huggingface_hub import HfApi

        unusable = f"{repo}: what should be the hub does not answer as the hub does. Fix: check HF_ENDPOINT"
        try:
            info = HfApi().model_info(repo, files_metadata=True)
        except (AttributeError, KeyError, TypeError, JSONDecodeError):
            raise ModelFileError(unusable) from None
        siblings = info.siblings or []
        if _COMMIT.fullmatch(info.sha or "") is None or len(siblings) > MAX_FILES:
            raise ModelFileError(unusable)
        files = (
            HubFile(one.rfilename, one.size or 0, (one.lfs.sha256 if one.lfs else one.blob_id) or "")
            for one in siblings
        )
        usable = (one for one in files if _SAFE_NAME.fullmatch(one.name) and _DIGEST.fullmatch(one.digest))
        return cls(repo, info.sha or "", tuple(usable))

    @classmethod
    def from_cache(cls, repo: str) -> Self | None:
        """The files that are in the cache, of the commit that was last fetched; None: there is nothing."""
        commit_path = storage_folder(repo) / "refs" / "main"
        commit = commit_path.read_text().strip() if commit_path.is_file() else ""
        if _COMMIT.fullmatch(commit) is None:
            return None
        return cls(repo, commit, tuple(_files_below(storage_folder(repo) / "snapshots" / commit)))

    @property
    def folder(self) -> Path:
        """Where the files are in the cache."""
        return storage_folder(self.repo) / "snapshots" / self.commit


def _files_below(folder: Path) -> Iterator[HubFile]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():  # a link into the blobs; one that leads nowhere is no file
            yield HubFile(path.relative_to(folder).as_posix(), path.stat().st_size)


def cache_folder() -> Path:
    """The cache that all tools of Hugging Face share: HF_HUB_CACHE, else below HF_HOME."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def storage_folder(repo: str) -> Path:
    """The folder of a repository in the cache."""
    return cache_folder() / f"models--{repo.replace('/', '--')}"
