"""Commands to copy after the demo: they work unchanged in the folder where it was started."""

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.worker.settings import WorkerSettings


class NextStep(NamedTuple):
    """A command and what it is good for."""

    command: str
    purpose: str


def next_steps(settings: WorkerSettings) -> list[NextStep]:
    """One command without a queue, then three that work together."""
    herd, prompt = _program(), '"Once upon a time"'
    file, name = "", ""
    if settings.model != BUNDLED_MODEL:
        file, name = f" --model {shlex.quote(str(settings.model))}", f" --model {settings.served_model}"
    return [
        NextStep(f"{herd} generate --local{file} {prompt}", "one job in this process: no queue, no Redis"),
        NextStep(f"{herd} worker --with-redis{file}", "a worker that stays, with a Redis that ends with it"),
        NextStep(f"{herd} generate{name} {prompt}", "a job through the queue; from a second terminal"),
        NextStep(f"{herd} status{name} --watch", "workers, batch, KV cache and queue, once a second"),
    ]


def _program() -> str:
    """The command that calls this same `herd` from here."""
    own = Path(sys.executable).with_name("herd")
    found = shutil.which("herd")
    if found is not None and own.exists() and own.samefile(found):
        return "herd"
    if not own.exists():
        return f"{shlex.quote(sys.executable)} -m llama_herd.cli"
    return shlex.quote(min(os.path.relpath(own), str(own), key=len))
