"""Secrets in files of their own, as container engines hand them over: `<variable>_FILE` names one."""

from pathlib import Path
from typing import Any

from pydantic import AliasChoices
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
)

from llama_herd.errors import SettingsError

SUFFIX = "_FILE"


def secret_variables(kind: type[BaseSettings]) -> dict[str, str]:
    """The variables that name a file with a secret, and what of. A secret is a field that is never shown."""
    prefix = str(kind.model_config["env_prefix"])
    secrets = {name: field for name, field in kind.model_fields.items() if not field.repr}
    return {f"{prefix}{name.upper()}{SUFFIX}": _key(name, field) for name, field in secrets.items()}


def _key(name: str, field: FieldInfo) -> str:
    """What a source calls a field: its first alias comes before values under the others."""
    alias = field.validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else name


class SecretFiles(PydanticBaseSettingsSource):
    """Reads the files; a line feed at the end is not part of a secret."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Not used: a file is known by its variable."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        files = [(key, name, self._path(name)) for name, key in secret_variables(self.settings_cls).items()]
        return {key: _content(name, path) for key, name, path in files if path}

    def _path(self, name: str) -> str | None:
        """The file that `name` names, unless the secret itself stands in the same place or a nearer one."""
        for source in (EnvSettingsSource(self.settings_cls), DotEnvSettingsSource(self.settings_cls)):
            if name.removesuffix(SUFFIX).lower() in source.env_vars:
                return None
            if name.lower() in source.env_vars:
                return source.env_vars[name.lower()]
        return None


def _content(name: str, path: str) -> str:
    try:
        return Path(path).read_text("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise SettingsError(f"{name}={path}: cannot be read: {reason}") from None
