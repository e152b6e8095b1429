"""A model file in figures: what it says, what it holds, and what a worker would need for it."""

import math
from collections.abc import Iterable, Sequence, Sized
from dataclasses import asdict, dataclass
from typing import Any, Self

from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.gguf_header import TensorInfo
from llama_herd.model.files.model_file import open_model
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.worker.loading.device import pin_device
from llama_herd.worker.loading.memory_plan import MemoryPlan
from llama_herd.worker.settings import WorkerSettings

#: A text of the header is shown up to here.
MAX_TEXT_CHARS = 200
#: An array of the header is shown up to this length.
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
    """How a model's text becomes ids."""

    vocab_size: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    adds_bos: bool
    has_chat_template: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        return cls(
            vocab_size=tokenizer.vocab_size,
            bos_id=tokenizer.bos_id,
            eos_ids=tuple(sorted(tokenizer.eos_ids)),
            adds_bos=tokenizer.adds_bos,
            has_chat_template=tokenizer.chat_template is not None,
        )


@dataclass(frozen=True)
class Memory:
    """What a worker with these settings would allocate on its device."""

    device: str
    dtype: str
    slots: int
    max_length: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_cache_tokens: int
    kv_cache_bytes: int

    @classmethod
    def of(cls, plan: MemoryPlan, settings: WorkerSettings) -> Self:
        return cls(
            device=settings.device,
            dtype=str(plan.dtype).removeprefix("torch."),
            slots=settings.slots,
            max_length=plan.max_length,
            weight_bytes=plan.weight_bytes,
            kv_bytes_per_token=plan.kv_bytes_per_token,
            kv_cache_tokens=plan.kv_cache_tokens,
            kv_cache_bytes=plan.kv_cache_bytes,
        )

    @property
    def num_bytes(self) -> int:
        return self.weight_bytes + self.kv_cache_bytes


@dataclass(frozen=True)
class ModelSummary:
    """All of it."""

    path: str
    header: dict[str, bool | int | float | str]
    shape: LlamaConfig
    tensors: tuple[TypeShare, ...]  # the type with most bytes first
    tokenizer: TokenizerSummary
    memory: Memory

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self:
        """Look at the model of these settings; no weight is read.

        Raises ModelFileError, SettingsError and DeviceError as a worker would.
        """
        device = pin_device(settings.device)
        with open_model(settings.model) as file:
            return cls(
                path=str(settings.model),
                header={key: _short(value) for key, value in file.metadata.items()},
                shape=file.config,
                tensors=_by_type(file.tensors),
                tokenizer=TokenizerSummary.of(file.read_tokenizer()),
                memory=Memory.of(MemoryPlan.of(settings, file, device), settings),
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
        """The summary for programs."""
        return asdict(self)


def _by_type(tensors: Iterable[TensorInfo]) -> tuple[TypeShare, ...]:
    groups: dict[str, list[TensorInfo]] = {}
    for info in tensors:
        groups.setdefault(info.type.name, []).append(info)
    shares = [TypeShare.of(type, group) for type, group in groups.items()]
    return tuple(sorted(shares, key=lambda share: -share.num_bytes))


def _short(value: object) -> bool | int | float | str:
    """A value of the header; of long arrays and of objects only how long they are."""
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
