"""The settings of a worker: which model, on which device, in how much memory."""

import os
import re
from collections import Counter
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator

from llama_herd.model.hub.name import PART, HubName
from llama_herd.model.parsers.formats import REASONING_FORMATS, TOOL_FORMATS
from llama_herd.model.parsers.output_formats import AUTO, NONE
from llama_herd.tasks.ledger.keys import joint_tenant
from llama_herd.tasks.message import queue_name
from llama_herd.tasks.settings import BUNDLED_MODEL_NAME, MAX_CONTEXT_TOKENS, TENANT_PATTERN, Settings

#: The model that comes with the package.
BUNDLED_MODEL = Path(__file__).resolve().parent.parent / "model" / "bundled" / "tales.gguf"

#: More threads than any machine's cores gain nothing, and some thousands crash the thread runtimes.
MAX_THREADS = 1024

#: A step of more prompt tokens gains nothing: it takes memory, and all streams wait for it.
MAX_PREFILL_TOKENS = 65_536

DAY_S = 86_400

LogFormat = Literal["auto", "console", "json"]


class WorkerSettings(Settings):
    """Read from the same variables as `Settings`; see `.env.example` for all of them."""

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
        "Empty: HERD_MODEL_NAME, else the name of the model file without the ending, or of the repository.",
    )
    tenants: str = Field(
        "",
        description="Tenants that this worker serves, such as acme,globex. Empty: HERD_TENANT only.",
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda:\d{1,4})$",
        description="cpu, or cuda:N with the number that nvidia-smi shows. auto: the first GPU, else cpu.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Type of the arithmetic. auto: bfloat16 where the device or kernels are fast in it.",
    )
    weights: Literal["auto", "quantized", "dense"] = Field(
        "auto",
        description="Form of the weights in memory: quantized as in the file, or dense, as plain numbers. "
        "auto: the faster one that fits.",
    )
    kernels_dir: str = Field(
        "",
        description="Folder of built kernels. Empty: llama-herd/kernels in the user's cache folder.",
    )
    graphs: Literal["auto", "uncaptured", "off"] = Field(
        "auto",
        description="How a GPU runs its steps. auto: as overlapping CUDA graphs, where a check finds them "
        "right. uncaptured: overlapping, but kernel by kernel. off: one by one.",
    )
    triton: Literal["auto", "off"] = Field(
        "auto",
        description="Kernels for a GPU in Triton. auto: those whose results a check finds right. "
        "off: plain torch.",
    )
    deterministic: bool = Field(
        False,
        description="Same token ids in any batch and after any crash. CPU and float32 only, and slower.",
    )
    threads: int = Field(
        0,
        ge=0,
        le=MAX_THREADS,
        description="CPU threads of torch. 0: one less than the cores it may use. More than the cores slows "
        "every step.",
    )
    slots: int = Field(
        32,
        ge=1,
        le=1024,
        description="Most sequences in the batch at a time. Absent: 32, and on a GPU 4 for each GB of its "
        "memory, from 32 to 256.",
    )
    context_tokens: int = Field(
        0,
        ge=0,
        le=MAX_CONTEXT_TOKENS,
        description="Longest sequence, prompt and output. 0: the context that the model was trained for.",
    )
    kv_cache_tokens: int = Field(
        0,
        ge=0,
        le=1 << 40,
        description="Size of the KV cache. 0: slots x context, but at most half of the free memory, "
        "or nine tenths on a GPU.",
    )
    memory_share: float = Field(
        1.0,
        ge=0.01,
        le=1,
        description="Largest share of the device's memory that this worker plans to take. "
        "1: all that is free.",
    )
    prefix_cache: bool = Field(
        True, description="Reuse the KV cache of prompts that begin with the same tokens."
    )
    prefill_tokens: int = Field(
        0,
        ge=0,
        le=MAX_PREFILL_TOKENS,
        description="Most prompt tokens in a step while other jobs decode. 0: chosen from "
        "measured times of steps.",
    )
    tool_parser: str = Field(
        "auto",
        description="How the model writes calls of tools: the name of a format, as herd inspect and "
        "docs/tools.md show them. auto: as its chat template says. none: calls are text.",
    )
    reasoning_parser: str = Field(
        "auto",
        description="How the model marks its reasoning, by a format's name. auto: as its chat template "
        "says. none: reasoning is text.",
    )
    flush_ms: int = Field(
        50,
        ge=0,
        le=10_000,
        description="Shortest time between two events of a job that sets no `flush_ms`; its first token "
        "comes at once. 0: an event for each step.",
    )
    grace_s: float = Field(5.0, ge=0, le=DAY_S, description="How long running jobs may go on after SIGTERM.")
    max_message_bytes: int = Field(
        2_097_152,
        ge=65_536,
        le=67_108_864,
        description="Longest message that a worker reads. Longer ones become dead letters.",
    )
    silence_s: float = Field(
        15.0,
        ge=2,
        le=DAY_S,
        description="A worker exits if messages wait and it takes none for this long.",
    )
    stall_s: float = Field(
        30.0,
        ge=1,
        le=DAY_S,
        description="If no layer finishes for this long, the worker stops renewing the leases of its jobs.",
    )
    link_queue: str = Field(
        "celery",
        pattern=r"^[A-Za-z0-9._:-]{1,128}$",
        description="Queue for links, chains and chords of other services' tasks that name no queue.",
    )
    remote_control: bool = Field(
        False,
        description="Obey all of Celery's remote control, not only revoke. Whoever reaches Redis can then "
        "shut workers down.",
    )
    metrics_port: int = Field(
        0,
        ge=0,
        le=65_535,
        description="Port of Prometheus metrics at /metrics. 0: none.",
    )
    metrics_host: str = Field(
        "127.0.0.1",
        pattern=r"^[0-9A-Za-z.:-]{1,255}$",
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
        hub_name = HubName.from_setting(self.model)
        return hub_name.served_name if hub_name else PART.sub("", self.model.stem)  # one name for all parts

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

    @field_validator("tool_parser", "reasoning_parser")
    @classmethod
    def _names_a_format(cls, name: str, info: ValidationInfo) -> str:
        formats = TOOL_FORMATS if info.field_name == "tool_parser" else REASONING_FORMATS
        if name not in (AUTO, NONE, *formats):
            raise ValueError(f"must be one of {', '.join((AUTO, NONE, *formats))}, got {name!r}")
        return name

    @field_validator("tenants")
    @classmethod
    def _names_each_tenant_once(cls, tenants: str) -> str:
        names = tenants.split(",") if tenants else []
        wrong = [name for name in names if re.fullmatch(TENANT_PATTERN, name) is None]
        twice = [name for name, times in Counter(names).items() if times > 1]
        if wrong:
            raise ValueError(
                f"must be names of 1 to 64 letters, digits, underscores or dashes, as in acme,globex, "
                f"got {wrong[0]!r}"
            )
        if twice:
            raise ValueError(f"must name each tenant once, got {twice[0]} {names.count(twice[0])} times")
        return tenants
