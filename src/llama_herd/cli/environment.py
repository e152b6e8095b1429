"""Settings for a command: its options become HERD_* variables, and these become settings."""

import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from llama_herd.cli.terminal import say
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.settings import PREFIX, Settings
from llama_herd.tasks.settings_files import names_in, secret_variables, warn_of_exposed_files

S = TypeVar("S", bound=Settings)


def variable_of(field: str) -> str:
    """The variable of a setting."""
    kind = next(kind for kind in _settings_classes() if field in kind.model_fields)
    return kind.variables(field)[0]


def override_settings(**options: object) -> None:
    """Set the variables of the given options; child processes see them too."""
    given = {variable_of(name): str(value) for name, value in options.items() if value is not None}
    os.environ.update(given)


def read_settings(kind: type[S], **options: object) -> S:
    """Read settings, and warn about unknown variables and exposed secrets. Raises SettingsError.

    options: what `override_settings` is to set before.
    """
    override_settings(**options)
    for name, nearest in unknown_variables().items():
        say(f"{name} is not a setting, so it has no effect. The nearest name is {nearest}")
    settings = kind.read()
    warn_of_exposed_files(kind)
    return settings


def unknown_variables() -> dict[str, str]:
    """Variables, also those of `.env`, that look like settings but are not, each with the nearest name."""
    of_file = names_in(Path(str(Settings.model_config["env_file"])))
    unknown = {name for name in (*os.environ, *of_file) if name.startswith(PREFIX)}
    known: set[str] = set()
    for kind in _settings_classes():
        known.update(kind.variables(field)[0] for field in kind.model_fields)
        known.update(secret_variables(kind))
        if unknown <= known:
            return {}
    near = sorted(known)
    return {name: get_close_matches(name, near, n=1, cutoff=0.0)[0] for name in sorted(unknown - known)}


def _settings_classes() -> Iterator[type[Settings]]:
    """The classes of settings that a command may read. A client's command stops before the worker's."""
    yield GatewaySettings
    from llama_herd.worker.settings import WorkerSettings

    yield WorkerSettings
