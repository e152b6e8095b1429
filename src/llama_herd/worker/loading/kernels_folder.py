"""The folder in which native kernels are built and looked for."""

import os
from pathlib import Path

from llama_herd.errors import SettingsError
from llama_herd.worker.settings import WorkerSettings


def kernels_folder(settings: WorkerSettings) -> Path:
    """The folder that is set, or one in the user's cache folder. Raises SettingsError if he has none."""
    if settings.kernels_dir:
        return Path(settings.kernels_dir).absolute()
    listed = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        cache = listed if listed.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        raise SettingsError(
            "this user has no home folder to keep kernels in. Fix: HERD_KERNELS_DIR"
        ) from None
    return cache / "llama-herd" / "kernels"
