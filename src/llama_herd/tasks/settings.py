"""Settings that every process needs: the address of Redis, the tenant, the limits."""

import errno
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, AliasChoices, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from llama_herd.errors import BadInput, SettingsError
from llama_herd.tasks.connection.redis_url import (
    checked_url,
    complete_url,
    is_same_redis,
    problem_with_file,
)
from llama_herd.tasks.settings_files import (
    SUFFIX,
    SecretFiles,
    check_env_file,
    secret_variables,
    without_complaints,
    without_login,
)

#: Name of the bundled model. Jobs go to its queue unless they or HERD_MODEL_NAME name another.
BUNDLED_MODEL_NAME = "tales"

#: The names of our variables begin with this.
PREFIX = "HERD_"

#: A tenant's name. It is part of keys, queues and channels.
TENANT_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"

#: A model's name. It is part of the name of its queue.
MODEL_PATTERN = r"^[A-Za-z0-9._-]{1,128}$"

#: Most names in HERD_MODELS: every sweep sends all of them to Redis.
MAX_MODELS = 256

#: Longest lifetime: ten years, which Redis counts in milliseconds.
MAX_TTL_S = 315_360_000

#: Longest prompt that HERD_MAX_PROMPT_BYTES can allow.
MAX_PROMPT_BYTES = 1_048_576

#: Longest context that a model file may declare, in tokens.
MAX_CONTEXT_TOKENS = 1 << 22

#: Most characters of a wrong value that an error repeats.
MAX_SHOWN_CHARS = 60

#: Longest path that Linux takes.
MAX_PATH_BYTES = 4095

#: Settings that complete the URL of Redis. They are declared before `redis_url`, whose validator reads them.
ACCESS = ("redis_password", "redis_ca_file", "redis_cert_file", "redis_key_file", "sentinel_password")


def _check_readable(path: str) -> str:
    path = os.path.expanduser(path)
    if path and (problem := problem_with_file(path)):
        raise ValueError(problem)
    return path


#: The path of a certificate or a key; empty: none.
ReadableFile = Annotated[str, AfterValidator(_check_readable)]


def check_path(path: str) -> str:
    """`path`, with ~ as the home folder: no shell expands it in a .env, or in --model=~/x.gguf.

    Raises ValueError for one that no system takes, or that no line could tell.
    """
    if (num_bytes := len(path.encode(errors="replace"))) > MAX_PATH_BYTES:
        raise ValueError(f"must be a path of at most {MAX_PATH_BYTES} bytes, got {num_bytes}")
    if re.search(r"[\0-\x1f\x7f]", path):
        raise ValueError("must be a path without control characters")
    return os.path.expanduser(path)


def check_folder(path: str) -> str:
    """`check_path` of a folder. Raises ValueError where none can be: at a file, or below one.

    One that is absent or locked passes: it may be made, or be a mount that is away.
    """
    if not (path := check_path(path)):
        return path
    try:
        problem = "" if stat.S_ISDIR(os.stat(path).st_mode) else "that is a file"
    except NotADirectoryError:
        problem = "that is below a file"
    except OSError as error:
        is_final = error.errno in (errno.ENAMETOOLONG, errno.ELOOP)
        problem = f"the system says: {error.strerror}" if is_final else ""
    if problem:
        raise ValueError(f"must be a folder, but {problem}. Fix: name a folder, or a path to make one at")
    return path


#: The path of a folder, which need not be there yet; empty: another place.
FolderPath = Annotated[str, AfterValidator(check_folder)]


def _check_host(host: str) -> str:
    if not re.fullmatch(r"(?=.{1,255}$)[0-9A-Za-z_:%-]{1,63}(\.[0-9A-Za-z_:%-]{1,63})*\.?", host):
        raise ValueError("must be an IP address or the name of this machine, as in 127.0.0.1 or ::1")
    return host


#: Where a server listens.
Host = Annotated[str, AfterValidator(_check_host)]


class Settings(BaseSettings):
    """Settings from `HERD_*` variables and a `.env` file; `read` reads them. Names contain the units.

    A secret may also be in a file that `<variable>_FILE` names.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        extra="ignore",
        frozen=True,
        populate_by_name=True,
        allow_inf_nan=False,
    )

    redis_password: str = Field(
        default="",
        description="Password of the user in HERD_REDIS_URL, unless the URL contains it.",
        repr=False,
    )
    redis_ca_file: ReadableFile = Field(
        default="",
        description="CA certificates to check Redis's certificate against. Empty: the system's.",
    )
    redis_cert_file: ReadableFile = Field(
        default="",
        description="Client certificate, if Redis asks for one. Its key may be in the same file.",
    )
    redis_key_file: ReadableFile = Field(default="", description="Private key of the client certificate.")
    sentinel_password: str = Field(
        default="",
        description="Password of the Sentinels in HERD_REDIS_URL, unless the URL contains it.",
        repr=False,
    )
    redis_url: str = Field(
        default="redis://127.0.0.1:6379/0",
        validation_alias=AliasChoices("HERD_REDIS_URL", "CELERY_BROKER_URL", "REDIS_URL"),
        validate_default=True,
        description="Redis for the queue, the ledger and the token streams, all in one database. "
        "rediss:// is TLS; sentinel://host1,host2/0?master=NAME asks Sentinels.",
        repr=False,  # may contain a password
    )
    result_url: str = Field(
        default="",
        description="Redis for Celery's results and chords: the result_backend of the shop's own apps. "
        "Empty: HERD_REDIS_URL.",
        repr=False,
    )
    tenant: str = Field(
        default="default",
        pattern=TENANT_PATTERN,
        description="Tenant that the jobs belong to. It is part of every Redis key.",
    )
    model_name: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._-]{0,128}$",
        description=f"Model for jobs that name none. Empty: {BUNDLED_MODEL_NAME}, the bundled one.",
    )
    stream_ttl_s: int = Field(
        default=3600,
        ge=1,
        le=MAX_TTL_S,
        description="How long a job and its events are kept after its end, if it has no `keep_s`.",
    )
    result_ttl_s: int = Field(
        default=86_400, ge=1, le=MAX_TTL_S, description="How long Celery keeps a job's result."
    )
    failed_ttl_s: int = Field(
        default=86_400,
        ge=0,
        le=MAX_TTL_S,
        description="A failed job, and its result, are kept for this long at least.",
    )
    bulk_ttl_s: int = Field(
        default=345_600,
        ge=1,
        le=MAX_TTL_S,
        description="How long jobs of submit_many, and their results, are kept after their end.",
    )
    dead_ttl_s: int = Field(
        default=604_800,
        ge=1,
        le=MAX_TTL_S,
        description="How long poisoned jobs and dead letters are kept.",
    )
    max_queue: int = Field(
        default=0,
        ge=0,
        le=10**9,
        description="Most jobs that may wait for a model; more are refused. 0: no limit.",
    )
    max_queue_tokens: int = Field(
        default=0,
        ge=0,
        le=10**12,
        description="Most tokens of prompts and outputs that may wait for a model. 0: no limit.",
    )
    replicas: int = Field(
        default=0,
        ge=0,
        le=100,
        description="Replicas of Redis that must have a job before submit returns. 0: it does not wait.",
    )
    replicas_timeout_s: float = Field(
        default=1.0, ge=0.01, le=4, description="How long submit waits for these replicas."
    )
    lease_ms: int = Field(
        default=3000,
        ge=500,
        le=3_600_000,
        description="A worker that is silent for this long loses its jobs to others.",
    )
    max_deaths: int = Field(
        default=3,
        ge=1,
        le=1000,
        description="A job is put aside once this many workers have died while they prepared or computed it.",
    )
    models: str = Field(
        default="",
        description="Models that may have no worker, such as tales,llama: their jobs are taken, and wait.",
    )
    unserved_timeout_s: int = Field(
        default=86_400,
        ge=0,
        le=MAX_TTL_S,
        description="A job ends with an error after this long if no worker has ever served its model, and "
        "HERD_MODELS does not name it. 0: it waits.",
    )
    max_prompt_bytes: int = Field(
        default=262_144,
        ge=1,
        le=MAX_PROMPT_BYTES,
        description="Longest prompt, in UTF-8 bytes, with all that counts as prompt.",
    )
    max_tokens_limit: int = Field(
        default=4096, ge=1, le=MAX_CONTEXT_TOKENS, description="Highest max_tokens that a job may ask for."
    )

    @property
    def results_url(self) -> str:
        """The URL of the Redis that keeps Celery's results."""
        return self.result_url or self.redis_url

    @property
    def keeps_results_elsewhere(self) -> bool:
        """Whether Celery's results are in another database or server than the jobs."""
        return bool(self.result_url) and not is_same_redis(self.result_url, self.redis_url)

    @property
    def standing_models(self) -> tuple[str, ...]:
        """Models whose jobs are taken, and wait, whether or not a worker serves them."""
        return tuple(self.models.split(",")) if self.models else ()

    @property
    def default_model(self) -> str:
        """The model that a job without a `model` goes to."""
        return self.model_name or BUNDLED_MODEL_NAME

    @field_validator("models")
    @classmethod
    def _check_models(cls, models: str) -> str:
        names = list(dict.fromkeys(name.strip() for name in models.split(","))) if models.strip() else []
        if wrong := [name for name in names if re.fullmatch(MODEL_PATTERN, name) is None]:
            raise ValueError(
                "must be names of 1 to 128 letters, digits, dots, underscores or dashes, as in tales,llama, "
                f"got {shortened(wrong[0])}"
            )
        if len(names) > MAX_MODELS:
            raise ValueError(f"must be at most {MAX_MODELS} names, got {len(names)}")
        return ",".join(names)

    @field_validator("redis_url")
    @classmethod
    def _complete_redis_url(cls, url: str, others: ValidationInfo) -> str:
        try:
            checked_url(url)
        except SettingsError as error:
            raise ValueError(str(error).removeprefix("HERD_REDIS_URL: ")) from None
        return complete_url(
            url, **{name.removeprefix("redis_"): others.data.get(name, "") for name in ACCESS}
        )

    @field_validator("result_url")
    @classmethod
    def _complete_result_url(cls, url: str) -> str:
        try:
            return complete_url(url) if url.strip() else ""
        except SettingsError as error:
            raise ValueError(str(error).removeprefix("HERD_REDIS_URL: ")) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, SecretFiles(cls), env_settings, dotenv_settings

    @field_validator("*", mode="before")
    @classmethod
    def _is_plain(cls, value: object) -> object:
        if isinstance(value, str) and ("\0" in value or value.encode(errors="replace").decode() != value):
            raise ValueError("must be UTF-8 text without a NUL")
        return value

    @classmethod
    def read(cls, **given: object) -> Self:
        """Read the settings from `given` (by field), the files of secrets, the variables and `.env`.

        The first of these that has a value counts. A file that a variable names is not read if the secret
        itself is in a variable, too; nor one that `.env` names if the secret is in a variable or in `.env`.
        Raises SettingsError. It names each wrong value by the variable it was read from, and what is allowed.
        """
        env_file = Path(str(cls.model_config["env_file"]))
        with without_complaints():
            try:
                check_env_file(env_file, PREFIX)
                return cls(**given)  # type: ignore[arg-type]
            except ValidationError as error:
                wrong = [cls._explain(detail, given) for detail in error.errors(include_url=False)]
                raise SettingsError("; ".join(wrong)) from None
            except (OSError, UnicodeDecodeError) as error:
                raise SettingsError(f"{env_file} cannot be read: {error}") from None

    @classmethod
    def variables(cls, field: str) -> tuple[str, ...]:
        """The variables that a setting is read from. The first one that is set counts. Raises BadInput."""
        if not isinstance(field, str) or field not in cls.model_fields:
            raise BadInput(f"field: must be the name of a setting, as tenant is, got {shortened(field)}")
        alias = cls.model_fields[field].validation_alias
        return (
            tuple(map(str, alias.choices)) if isinstance(alias, AliasChoices) else (PREFIX + field.upper(),)
        )

    @classmethod
    def _explain(cls, detail: Mapping[str, Any], given: Mapping[str, object]) -> str:
        names = {name: field for field in cls.model_fields for name in (field, *cls.variables(field))}
        field = names[detail["loc"][0]]
        name = field if field in given else cls._variable_in_use(field)
        value = f"={shortened(detail['input'])}" if cls.model_fields[field].repr else ""
        message = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
        if detail["type"] == "string_pattern_mismatch":
            message = _name_text(detail["ctx"]["pattern"]) or message
        return without_login(f"{name}{value}: {message[0].lower()}{message[1:]}")

    @classmethod
    def _variable_in_use(cls, field: str) -> str:
        names = cls.variables(field)
        file_name = f"{PREFIX}{field.upper()}{SUFFIX}"
        if file_name in secret_variables(cls) and SecretFiles(cls).path_of(file_name):
            return file_name
        for source in (EnvSettingsSource(cls), DotEnvSettingsSource(cls)):
            for name in names:
                if name.lower() in source.env_vars:
                    return name
        return names[0]


#: What a name may have besides letters and digits.
_MARKS = {".": "dots", "_": "underscores", ":": "colons", "-": "dashes"}


def _name_text(pattern: str) -> str:
    """What a name must be by its pattern, such as TENANT_PATTERN; empty for any other pattern."""
    found = re.fullmatch(r"\^\[A-Za-z0-9([._:-]*)\]\{(\d+),(\d+)\}\$", pattern)
    if found is None:
        return ""
    *others, last = ["letters", "digits", *map(_MARKS.__getitem__, found[1])]
    return f"must be {found[2]} to {found[3]} {', '.join(others)} or {last}"


def shortened(value: object) -> str:
    """A wrong value, as an error repeats it."""
    try:
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
    except ValueError:  # Python writes no whole number of more than some thousand digits
        return "a number beyond all bounds"
    return shown if len(shown) <= MAX_SHOWN_CHARS else f"{shown[:MAX_SHOWN_CHARS]}..."
