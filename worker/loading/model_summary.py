"""A model file in figures: its header, tensors and tokenizer, and the memory that a worker would need."""

import math
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import asdict, dataclass
from typing import Any, Self

from llama_herd.errors import BadInput
from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.gguf_header import TensorInfo
from llama_herd.model.text.tokenizer import Tokenizer
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
    def of(cls, type: str, tensors: Sequence[TensorInfo]) -> Self:
        num_parameters = sum(math.prod(info.shape) for info in tensors)
        return cls(type, len(tensors), num_parameters, sum(info.num_bytes for info in tensors))


@dataclass(frozen=True)
class TokenizerSummary:
    """The facts about a model's tokenizer."""

    vocab_size: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    adds_bos: bool
    chat_templates: tuple[str, ...]  # their names
    #: Why one cannot be used, so that jobs with messages are refused. Empty: all can.
    chat_complaint: str

    @classmethod
    def of(cls, tokenizer: Tokenizer, chat_complaint: str) -> Self:
        return cls(
            vocab_size=tokenizer.vocab_size,
            bos_id=tokenizer.bos_id,
            eos_ids=tuple(sorted(tokenizer.eos_ids)),
            adds_bos=tokenizer.adds_bos,
            chat_templates=tuple(sorted(tokenizer.chat_templates)),
            chat_complaint=chat_complaint,
        )


@dataclass(frozen=True)
class Memory:
    """The memory that a worker with these settings would take on its device."""

    device: str
    dtype: str
    slots: int
    max_length: int
    weights: str  # how they lie
    weight_bytes: int
    kv_bytes_per_token: int
    kv_cache_tokens: int
    kv_cache_bytes: int
    parts: dict[str, int]  # all bytes, by what they are for
    num_bytes: int  # of all parts
    free_bytes: int  # for this process

    @classmethod
    def of(cls, plan: MemoryPlan, settings: WorkerSettings) -> Self:
        return cls(
            device=settings.device,
            dtype=str(plan.dtype).removeprefix("torch."),
            slots=settings.slots,
            max_length=plan.max_length,
            weights=plan.form_note,
            weight_bytes=plan.weight_bytes,
            kv_bytes_per_token=plan.kv_bytes_per_token,
            kv_cache_tokens=plan.kv_cache_tokens,
            kv_cache_bytes=plan.kv_cache_bytes,
            parts=plan.parts,
            num_bytes=plan.num_bytes,
            free_bytes=plan.free_bytes,
        )


@dataclass(frozen=True)
class ModelSummary:
    """All facts about a model file, and whether it can be served here."""

    path: str
    header: dict[str, bool | int | float | str]
    shape: LlamaConfig
    tensors: tuple[TypeShare, ...]  # the type with most bytes first
    tokenizer: TokenizerSummary
    memory: Memory
    #: Why a worker would refuse it: too little memory here. Empty: it fits.
    complaint: str

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self:
        """Summarise the model of these settings, without reading its weights.

        Raises ModelFileError, SettingsError and DeviceError as a worker would, but not for lack of memory.
        """
        settings = on_device(settings)
        with ServableModel.open(settings, pin_device(settings.device)) as servable:
            file = servable.file
            return cls(
                path=str(settings.model),
                header={key: _short(value) for key, value in file.metadata.items()},
                shape=file.config,
                tensors=_by_type(file.tensors),
                tokenizer=TokenizerSummary.of(servable.tokenizer, _complaint(servable.check_chat)),
                memory=Memory.of(servable.plan(), settings),
                complaint=_complaint(servable.fitting_plan),
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

    @property
    def shape_facts(self) -> dict[str, Any]:
        """The fields of the shape, the family by its name."""
        return {**asdict(self.shape), "family": self.shape.family.name}

    def to_dict(self) -> dict[str, Any]:
        """The summary for programs."""
        return {**asdict(self), "shape": self.shape_facts}


def _complaint(check: Callable[[], object]) -> str:
    """The error message of a check; empty if it passes."""
    try:
        check()
    except BadInput as error:
        return str(error)
    return ""


def _by_type(tensors: Iterable[TensorInfo]) -> tuple[TypeShare, ...]:
    groups: dict[str, list[TensorInfo]] = {}
    for info in tensors:
        groups.setdefault(info.type.name, []).append(info)
    shares = [TypeShare.of(type, group) for type, group in groups.items()]
    return tuple(sorted(shares, key=lambda share: -share.num_bytes))


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
            return f"{len(value)} values"
        case _:
            return "none"
