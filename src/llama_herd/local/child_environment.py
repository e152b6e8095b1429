"""The environment of a worker that is a child process: its settings, and nothing of ours that contradicts."""

import os

from llama_herd.tasks.settings import Settings

#: Names under which Celery would find another Redis.
_FOREIGN = ("CELERY_", "REDIS_URL")


def child_environment(settings: Settings) -> dict[str, str]:
    """The environment of a worker with exactly these settings, whatever our own environment says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return kept | {settings.variables(name)[0]: str(value) for name, value in settings.model_dump().items()}
