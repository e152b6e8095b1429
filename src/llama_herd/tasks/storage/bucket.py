"""Files in a bucket of S3, or of what speaks like it.

An object appears whole or not at all, and is never appended to. So a journal is a row of numbered objects.
Needs the extra `s3`. Keys, region and endpoint are looked for as all tools of AWS do (AWS_ACCESS_KEY_ID,
AWS_ENDPOINT_URL and so on).
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from io import BufferedReader
from typing import Any, BinaryIO

from llama_herd.errors import BadInput, FileLost, StorageUnavailable
from llama_herd.extras import install_command
from llama_herd.tasks.storage.storage import Journal, StoragePlace

SCHEME = "s3://"
#: Bytes of a part of an upload, of which a service takes up to 10,000.
PART_BYTES = 16 << 20
READ_BYTES = 1 << 20


class Bucket:
    """A bucket, or what is below a prefix in it; `url` is s3://bucket/prefix. Raises BadInput."""

    flush_s = 1.0

    def __init__(self, url: str) -> None:
        self._root = url.removeprefix(SCHEME).strip("/")
        if not self._root:
            raise BadInput(f"{url}: names no bucket. Fix: HERD_GATEWAY_FILES=s3://bucket/prefix")
        if find_spec("s3fs") is None:
            raise BadInput(f"{url} needs s3fs. Fix: {install_command('s3')}")

    @property
    def is_there(self) -> bool:
        return True  # whether anything is in it costs more to ask than to look for what is due

    @cached_property
    def id(self) -> str:
        """The storage's id, equal for the same bucket and prefix."""
        return f"s3-{hashlib.sha256(self._root.encode()).hexdigest()[:24]}"

    @cached_property
    def _files(self) -> Any:
        from s3fs import S3FileSystem

        return S3FileSystem(use_listings_cache=False, skip_instance_cache=True)

    @contextmanager
    def draft(self, place: StoragePlace) -> Iterator["_Draft"]:
        with _storage_errors(self._root):
            path = self._path(place)
            writing = _Draft(
                self._files.open(path, "wb", block_size=PART_BYTES, autocommit=False), self._root
            )
            try:
                yield writing
            finally:
                writing.drop()

    @contextmanager
    def read(self, place: StoragePlace) -> Iterator[BinaryIO]:
        with _storage_errors(self._root), self._files.open(self._path(place), "rb") as file:
            yield BufferedReader(file, READ_BYTES)  # whose lines may be limited

    def delete(self, place: StoragePlace) -> None:
        with _storage_errors(self._root):
            found = self._files.find(self._path(place))
            if found:
                self._files.rm(found)

    @contextmanager
    def journal(self, place: StoragePlace) -> Iterator[Journal]:
        num_objects = 0

        def append(lines: Sequence[bytes]) -> None:
            nonlocal num_objects
            if lines:
                with _storage_errors(self._root):
                    path = self._path(place / _object_name(num_objects))
                    self._files.pipe_file(path, b"".join(lines))
                num_objects += 1

        yield append

    def extent(self, place: StoragePlace) -> int:
        """The number of the journal's objects."""
        with _storage_errors(self._root):
            try:
                names = {path.rpartition("/")[2] for path in self._files.ls(self._path(place), detail=False)}
            except FileNotFoundError:
                return 0
        num = 0
        while _object_name(num) in names:
            num += 1
        return num

    def lines(self, place: StoragePlace, extent: int) -> Iterator[bytes]:
        for number in range(extent):
            with _storage_errors(self._root):
                found = self._files.cat_file(self._path(place / _object_name(number)))
            yield from found.splitlines(keepends=True)

    def _path(self, place: StoragePlace) -> str:
        return f"{self._root}/{place.tenant}/{place.name}"


class _Draft:
    def __init__(self, file: Any, root: str) -> None:
        self.num_bytes = 0
        self._file = file
        self._root = root
        self._is_kept = False

    def write(self, part: bytes) -> None:
        with _storage_errors(self._root):  # whoever writes may do so in another thread than that of the block
            self._file.write(part)
        self.num_bytes += len(part)

    def keep(self) -> None:
        with _storage_errors(self._root):
            self._file.close()
            self._file.commit()
        self._is_kept = True

    def drop(self) -> None:
        """End an upload that was not kept."""
        if not self._is_kept:
            self._file.discard()
            self._file.closed = True  # else it would be closed once more when it is forgotten


def _object_name(number: int) -> str:
    return f"{number:08}"


@contextmanager
def _storage_errors(root: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except FileNotFoundError as error:
        raise FileLost(f"a file is gone from {SCHEME}{root}") from error
    except (OSError, BotoCoreError, ClientError) as error:
        raise StorageUnavailable(
            f"files cannot be stored in {SCHEME}{root}: {type(error).__name__}. "
            "Fix: check the bucket, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL"
        ) from error
