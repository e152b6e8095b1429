"""Settings for a command: its options become HERD_* variables, and these become settings."""

import os
import sys
from difflib import get_close_matches
from typing import TypeVar

from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.secret_files import secret_variables, warn_of_exposed_files
from llama_herd.tasks.settings import PREFIX, Settings
from llama_herd.worker.settings import WorkerSettings

S = TypeVar("S", bound=Settings)

#: Everything that a command may be set to.
KINDS: tuple[type[Settings], ...] = (WorkerSettings, GatewaySettings)

#: Names under which Celery would find another Redis.
_FOREIGN = ("CELERY_", "REDIS_URL")


def variable(field: str) -> str:
    """The variable of a setting."""
    kind = next(kind for kind in KINDS if field in kind.model_fields)
    return kind.variables(field)[0]


def override(**options: object) -> None:
    """Set the variables of the given options; child processes see them too."""
    given = {variable(name): str(value) for name, value in options.items() if value is not None}
    os.environ.update(given)


def read(kind: type[S]) -> S:
    """Read settings, and warn about unknown variables and exposed secrets. Raises SettingsError."""
    for name, nearest in unknown_variables().items():
        complaint = f"{name} is not a setting, so it has no effect. The nearest name is {nearest}"
        print(f"herd: {complaint}", file=sys.stderr)
    settings = kind.read()
    warn_of_exposed_files(kind)
    return settings


def child_environment(settings: WorkerSettings) -> dict[str, str]:
    """The environment of a worker with exactly these settings, whatever our own environment says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return kept | {variable(name): str(value) for name, value in settings.model_dump().items()}


def unknown_variables() -> dict[str, str]:
    """Variables that look like settings but are not, each with the nearest setting's name."""
    fields = {field for kind in KINDS for field in kind.model_fields}
    known = sorted({*map(variable, fields), *(name for kind in KINDS for name in secret_variables(kind))})
    unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    return {name: get_close_matches(name, known, n=1, cutoff=0.0)[0] for name in unknown}
