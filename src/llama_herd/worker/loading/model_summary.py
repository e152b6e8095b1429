"""A model file in figures: its header, tensors and tokenizer, and the memory that a worker would need."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from llama_herd.counted import counted
from llama_herd.errors import BadInput, ModelFileError, SettingsError
from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.files.sketch import Sketch, TensorFact, kind_of
from llama_herd.model.parsers.formats import AUTO, NONE, ReasoningFormat, ToolFormat
from llama_herd.model.shape.purpose import Embeds
from llama_herd.model.text.token_facts import TokenFacts
from llama_herd.worker.loading.device import on_device, pin_device
from llama_herd.worker.loading.memory_plan import MemoryPlan
from llama_herd.worker.loading.servable_model import ServableModel
from llama_herd.worker.settings import WorkerSettings

#: Most characters of a header's text that are shown.
MAX_TEXT_CHARS = 200
#: Longest array of a header that is shown.
MAX_SHOWN_VALUES = 8


@dataclass(frozen=True)
class TypeShare:
    """All tensors of one type."""

    type: str
    num_tensors: int
    num_parameters: int
    num_bytes: int

    @classmethod
    def from_tensors(cls, type: str, tensors: Sequence[TensorFact]) -> Self:
        num_parameters = sum(fact.num_parameters for fact in tensors)
        return cls(type, len(tensors), num_parameters, sum(fact.num_bytes for fact in tensors))

    @classmethod
    def by_type(cls, tensors: Iterable[TensorFact]) -> tuple[Self, ...]:
        """A share for each type, the one with most bytes first."""
        groups: dict[str, list[TensorFact]] = {}
        for fact in tensors:
            groups.setdefault(fact.type, []).append(fact)
        shares = [cls.from_tensors(type, group) for type, group in groups.items()]
        return tuple(sorted(shares, key=lambda share: -share.num_bytes))


@dataclass(frozen=True)
class MemorySummary:
    """The memory that a worker with these settings would take on its device."""

    device: str
    dtype: str
    slots: int
    max_length: int
    weights: str  # how they lie
    kernels: str  # that multiply them, or why none
    weight_bytes: int
    kv_bytes_per_token: int
    kv_cache_tokens: int
    kv_cache_bytes: int
    parts: dict[str, int]  # all bytes, by what they are for
    num_bytes: int  # of all parts
    free_bytes: int  # for this process

    @classmethod
    def from_plan(cls, plan: MemoryPlan, settings: WorkerSettings) -> Self:
        return cls(
            device=settings.device,
            dtype=plan.dtype,
            slots=settings.slots,
            max_length=plan.max_length,
            weights=plan.form_note,
            kernels=plan.form.kernels.note,
            weight_bytes=plan.weight_bytes,
            kv_bytes_per_token=plan.kv_bytes_per_token,
            kv_cache_tokens=plan.kv_cache_tokens,
            kv_cache_bytes=plan.kv_cache_bytes,
            parts=plan.parts,
            num_bytes=plan.num_bytes,
            free_bytes=plan.free_bytes,
        )


@dataclass(frozen=True)
class FormatFact:
    """A format of a model's outputs, and what says so: a setting, or the chat template of a name."""

    name: str  # "none": there is none
    source: str  # empty: nothing speaks of one

    @classmethod
    def from_choice(
        cls,
        form: ReasoningFormat | ToolFormat | None,
        chosen: str,
        setting: str,
        templates: Mapping[str, str],
    ) -> Self:
        if chosen != AUTO:
            return cls(chosen, setting)
        if form is None:
            return cls(NONE, "")
        told_by = min(name for name, text in templates.items() if form.is_told_by(text))
        return cls(form.name, f"chat template {told_by}")


@dataclass(frozen=True)
class PurposeFact:
    """What a model is for, by its files or HERD_POOLING."""

    kind: str  # "generates", "embeds" or "ranks"
    sentence: str  # for a person
    width: int | None  # numbers of a vector
    prompts: Mapping[str, str]  # what is put before a text that is embedded, by name
    default_prompt: str | None
    warnings: tuple[str, ...]

    @classmethod
    def from_file(cls, file: ModelFile) -> Self:
        purpose, kind = file.purpose, type(file.purpose).__name__.lower()
        if isinstance(purpose, Embeds):
            about = purpose.width(file.config.hidden_size), purpose.prompts, purpose.default_prompt
            return cls(kind, purpose.sentence, *about, file.complaints)
        return cls(kind, purpose.sentence, None, {}, None, file.complaints)


@dataclass(frozen=True)
class ModelSummary:
    """All facts about a model file, and whether it can be served here.

    Of a file that is refused these are the facts that its headers tell: any file can be looked at.
    """

    path: str
    kind: str  # empty: there is nothing
    header: dict[str, bool | int | float | str]
    shape: LlamaConfig | None  # of a model that can be served
    tensors: tuple[TypeShare, ...]  # the type with most bytes first
    tokenizer: TokenFacts | None
    memory: MemorySummary | None  # of a model that suits the settings
    #: Why a worker would refuse it. Empty: it would not.
    complaint: str
    #: How it writes calls of tools, and its reasoning.
    tool_format: FormatFact | None = None
    reasoning_format: FormatFact | None = None
    purpose: PurposeFact | None = None  # of a model whose files can be read

    @classmethod
    def from_settings(cls, settings: WorkerSettings) -> Self:
        """Summarise the model of these settings, without reading its weights."""
        try:
            settings = on_device(settings)
            device = pin_device(settings.device)
            with ServableModel.open(settings, device, is_only_planned=True) as servable:
                return cls._from_servable(servable, settings)
        except BadInput as error:
            return cls._from_sketch(Sketch.from_path(settings.model), settings.model, str(error))

    @classmethod
    def _from_servable(cls, servable: ServableModel, settings: WorkerSettings) -> Self:
        file, complaint = servable.file, _complaint(servable.fitting_plan)
        formats, templates = servable.formats, servable.tokenizer.chat_templates
        memory = None
        with suppress(SettingsError, ModelFileError):
            memory = MemorySummary.from_plan(servable.plan(), settings)
        return cls(
            path=str(settings.model),
            kind=kind_of(settings.model),
            header=_shown(file.metadata),
            shape=file.config,
            tensors=TypeShare.by_type(map(TensorFact.from_info, file.tensors)),
            tokenizer=TokenFacts.from_tokenizer(servable.tokenizer, _complaint(servable.check_chat)),
            memory=memory,
            complaint=complaint,
            tool_format=FormatFact.from_choice(
                formats.tools, settings.tool_parser, "HERD_TOOL_PARSER", templates
            ),
            reasoning_format=FormatFact.from_choice(
                formats.reasoning, settings.reasoning_parser, "HERD_REASONING_PARSER", templates
            ),
            purpose=PurposeFact.from_file(file),
        )

    @classmethod
    def _from_sketch(cls, sketch: Sketch, path: Path, complaint: str) -> Self:
        return cls(
            path=str(path),
            kind=sketch.kind,
            header=_shown(sketch.header),
            shape=None,
            tensors=TypeShare.by_type(sketch.tensors),
            tokenizer=sketch.tokens,
            memory=None,
            complaint=complaint,
        )

    @property
    def total(self) -> TypeShare:
        """All tensors together."""
        return TypeShare(
            "all",
            sum(share.num_tensors for share in self.tensors),
            sum(share.num_parameters for share in self.tensors),
            sum(share.num_bytes for share in self.tensors),
        )

    def to_dict(self) -> dict[str, Any]:
        """The summary for programs, with the family by its name."""
        shape = self.shape and {**asdict(self.shape), "family": self.shape.family.name}
        return {**asdict(self), "shape": shape}


def _complaint(check: Callable[[], object]) -> str:
    """The error message of a check; empty if it passes."""
    try:
        check()
    except BadInput as error:
        return str(error)
    return ""


def _shown(header: Mapping[str, object]) -> dict[str, bool | int | float | str]:
    return {key: _short(value) for key, value in header.items()}


def _short(value: object) -> bool | int | float | str:
    """A value of the header; for long arrays and objects only their length."""
    match value:
        case bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)  # JSON has no word for infinity
        case str():
            return value if len(value) <= MAX_TEXT_CHARS else f"{value[:MAX_TEXT_CHARS]}..."
        case tuple() | list() if len(value) <= MAX_SHOWN_VALUES:
            return _short(", ".join(map(str, value)))
        case Sized():
            return counted(len(value), "value")
        case _:
            return "none"
