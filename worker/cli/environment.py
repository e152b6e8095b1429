"""Settings for a command: options become HERD_* variables, and these become settings or one clear error."""

import os
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import ValidationError

from llama_herd.errors import SettingsError
from llama_herd.tasks.settings import Settings
from llama_herd.worker.settings import WorkerSettings

S = TypeVar("S", bound=Settings)

#: Names under which Celery would find another Redis.
_FOREIGN = ("CELERY_", "REDIS_URL")


def variable(field: str) -> str:
    """The variable of a setting."""
    return f"HERD_{field.upper()}"


def override(**options: object) -> None:
    """Set the variables of those options that were given; child processes see them too."""
    given = {variable(name): str(value) for name, value in options.items() if value is not None}
    os.environ.update(given)


def read(kind: type[S]) -> S:
    """Read settings, and warn of variables that are none.

    Raises SettingsError, which names each variable that is wrong.
    """
    for warning in _warnings():
        print(f"herd: {warning}", file=sys.stderr)
    try:
        return kind()
    except ValidationError as error:
        raise SettingsError("; ".join(map(_explained, error.errors(include_url=False)))) from None


def child_environment(settings: WorkerSettings) -> dict[str, str]:
    """The environment of a worker that is to have these settings, whatever ours says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return kept | {variable(name): str(value) for name, value in settings.model_dump().items()}


def _warnings() -> list[str]:
    known = [variable(name) for name in WorkerSettings.model_fields]
    unknown = sorted(name for name in os.environ if name.startswith("HERD_") and name not in known)
    return [
        f"{name} is no setting, its value is not used. The nearest name is {_nearest(name, known)}"
        for name in unknown
    ]


def _nearest(name: str, known: list[str]) -> str:
    return get_close_matches(name, known, n=1, cutoff=0.0)[0]


def _explained(detail: Mapping[str, Any]) -> str:
    field = "_".join(map(str, detail["loc"])).upper().removeprefix("HERD_")
    return f"HERD_{field}={detail['input']}: {detail['msg'][0].lower()}{detail['msg'][1:]}"
