"""Makes a worker's forward fail as a GPU does. Loaded by `celery worker -I`, by tests only.

LOST_CARD=file  once it is there; what it holds is the text of the error. If its name ends in .load, then the
                load fails so, as long as kernels may be the cause.
"""

import os
from pathlib import Path
from typing import Any

from llama_herd.model.llama2 import Llama
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings

FILE = Path(os.environ["LOST_CARD"])
forward = Llama.forward
load = LoadedModel.load


def error() -> str:
    """Empty also between a test's opening of the file and its writing it."""
    try:
        return FILE.read_text()
    except FileNotFoundError:
        return ""


def load_unless_lost(settings: WorkerSettings, *arguments: Any) -> LoadedModel:
    if FILE.suffix == ".load" and settings.triton == "auto":
        raise RuntimeError(FILE.read_text())
    return load(settings, *arguments)


def forward_unless_lost(self: Llama, *arguments: Any, **options: Any) -> Any:
    if FILE.suffix != ".load" and (text := error()):
        raise RuntimeError(text)
    return forward(self, *arguments, **options)


LoadedModel.load = load_unless_lost  # type: ignore[method-assign, assignment]
Llama.forward = forward_unless_lost  # type: ignore[method-assign]
