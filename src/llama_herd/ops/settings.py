"""The settings of a process that serves: which model, for whom, and where its metrics and logs go."""

import os
import re
from collections import Counter
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, field_validator

from llama_herd.errors import SettingsError
from llama_herd.model.hub.name import PART, HubName
from llama_herd.tasks.ledger.keys import joint_tenant
from llama_herd.tasks.protocol.message import queue_name
from llama_herd.tasks.settings import (
    BUNDLED_MODEL_NAME,
    MODEL_PATTERN,
    TENANT_PATTERN,
    Host,
    Settings,
    check_path,
    shortened,
)

#: The model that comes with the package.
BUNDLED_MODEL = Path(__file__).resolve().parent.parent / "model" / "bundled" / "tales.gguf"

LogFormat = Literal["auto", "console", "json"]


class ServedSettings(Settings):
    """What workers and gateways tell of: a model, its tenants, and where they are told."""

    model: Path = Field(
        BUNDLED_MODEL,
        description="GGUF file or Hugging Face folder of the model; or hf:OWNER/NAME, of Hugging Face, which "
        "is fetched; :FILE.gguf or a type such as :Q4_K_M may follow the name. Unset, or tales: the bundled "
        "model.",
    )
    served_model_name: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]{0,128}$",
        description="Name under which the worker serves its model: jobs name it, and it names the queue. "
        "Empty: HERD_MODEL_NAME, else that of the file without .gguf, of the folder or of the repository.",
    )
    tenants: str = Field(
        "",
        description="Tenants that this worker serves, such as acme,globex. Empty: HERD_TENANT only.",
    )
    metrics_port: int = Field(
        0,
        ge=0,
        le=65_535,
        description="Port of Prometheus metrics at /metrics, and of a worker's health. 0: none.",
    )
    metrics_host: Host = Field(
        "127.0.0.1",
        description="Address at which metrics are served. 0.0.0.0: to every machine that can reach this one.",
    )
    log_format: LogFormat = Field(
        "auto",
        description="json: one object a line. console: text for people. auto: text on a terminal, else JSON.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The least urgent lines that are logged."
    )

    @property
    def served_model(self) -> str:
        """The name whose queue this worker reads."""
        if name := self.served_model_name or self.model_name:
            return name
        name = os.path.basename(os.path.abspath(self.model))  # "." is a folder, too
        is_digest = re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", name) is not None  # as commits and blobs have
        if hub_name := HubName.from_setting(self.model) or (is_digest and HubName.from_cache(self.model)):
            return hub_name.served_name
        return PART.sub("", re.sub(r"\.gguf$", "", name, flags=re.IGNORECASE))  # one name for all parts

    def check_served_model(self) -> None:
        """Raise SettingsError where no job could name the model, since its file has such a name."""
        if re.fullmatch(MODEL_PATTERN, self.served_model) is None:
            raise SettingsError(
                f"HERD_MODEL={shortened(str(self.model))}: no job can ask for a model of the name "
                f"{shortened(self.served_model)}. Fix: HERD_SERVED_MODEL_NAME (--served-model-name), of 1 to "
                "128 letters, digits, dots, underscores or dashes"
            )

    @property
    def queue(self) -> str:
        """The queue of the one tenant; see `by_queue`."""
        return queue_name(self.served_model, self.tenant)

    @property
    def by_queue(self) -> dict[str, Self]:
        """Map each queue that this worker reads to the settings for its tenant alone."""
        if not self.tenants:
            return {self.queue: self}
        each = (self.model_copy(update={"tenant": name, "tenants": ""}) for name in self._tenant_names)
        return {one.queue: one for one in each}

    def for_queue(self, queue: str) -> Self:
        """The settings of the tenant that `queue` belongs to; of the first tenant if it belongs to none."""
        return self.by_queue.get(queue, self.for_first_tenant)

    @property
    def for_first_tenant(self) -> Self:
        """The settings for the first tenant alone, for anything that is the same for all tenants."""
        return next(iter(self.by_queue.values()))

    @property
    def joint_tenant(self) -> str:
        """The combined name of all tenants of this worker, for keys that they share."""
        return joint_tenant(self._tenant_names)

    @property
    def _tenant_names(self) -> list[str]:
        return self.tenants.split(",") if self.tenants else [self.tenant]

    @field_validator("model", mode="before")
    @classmethod
    def _is_a_path(cls, model: object) -> object:
        if not isinstance(model, str):
            return model
        if not model.strip():
            raise ValueError("must be a path, or hf:OWNER/NAME. Fix: leave it out for the bundled model")
        return check_path(model)

    @field_validator("model")
    @classmethod
    def _names_a_model(cls, model: Path) -> Path:
        """Take a path, hf: and a repository, or the name of the bundled model where no file has it."""
        HubName.from_setting(model)
        is_bundled = str(model) == BUNDLED_MODEL_NAME and not os.path.lexists(model)
        return BUNDLED_MODEL if is_bundled else model

    @field_validator("log_level", mode="before")
    @classmethod
    def _in_lower_case(cls, level: object) -> object:
        return level.lower() if isinstance(level, str) else level

    @field_validator("tenants")
    @classmethod
    def _names_each_tenant_once(cls, tenants: str) -> str:
        names = tenants.split(",") if tenants else []
        wrong = [name for name in names if re.fullmatch(TENANT_PATTERN, name) is None]
        twice = [name for name, times in Counter(names).items() if times > 1]
        if wrong:
            raise ValueError(
                f"must be names of 1 to 64 letters, digits, underscores or dashes, as in acme,globex, "
                f"got {shortened(wrong[0])}"
            )
        if twice:
            raise ValueError(f"must name each tenant once, got {twice[0]} {names.count(twice[0])} times")
        return tenants
