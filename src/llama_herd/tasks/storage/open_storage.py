"""The storage that a setting names."""

from pathlib import Path

from llama_herd.tasks.storage.bucket import SCHEME, Bucket
from llama_herd.tasks.storage.folder import Folder
from llama_herd.tasks.storage.storage import Storage

#: Below the user's home.
DEFAULT = ".local/share/llama-herd/files"


def open_storage(name: str) -> Storage:
    """A storage by the path of a folder, or by s3://bucket/prefix; empty: a folder below the user's home.

    Nothing is touched yet. Raises BadInput.
    """
    if name.startswith(SCHEME):
        return Bucket(name)
    return Folder(Path(name) if name else Path.home() / DEFAULT)
