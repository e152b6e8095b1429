"""The folder in which native kernels are built and looked for."""

import os
from pathlib import Path

from llama_herd.worker.settings import WorkerSettings


def kernels_folder(settings: WorkerSettings) -> Path:
    """The folder that is set, or one in the user's cache folder."""
    if settings.kernels_dir:
        return Path(settings.kernels_dir).absolute()
    listed = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = listed if listed.is_absolute() else Path.home() / ".cache"
    return cache / "llama-herd" / "kernels"
