"""How much memory a model takes on a device at the current settings."""

import math
from dataclasses import dataclass
from typing import Self

import torch

from llama_herd.errors import SettingsError
from llama_herd.model.cache import Cache
from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.pages import PAGE_TOKENS, pages_for
from llama_herd.worker.loading.free_memory import free_bytes
from llama_herd.worker.settings import WorkerSettings


@dataclass(frozen=True)
class MemoryPlan:
    """What a worker allocates when it starts; nothing of it ever grows."""

    dtype: torch.dtype
    max_length: int  # tokens of the longest sequence
    weight_bytes: int  # laid out on the device
    kv_bytes_per_token: int  # in all layers
    num_pages: int
    free_bytes: int  # on the device, before anything is allocated

    @classmethod
    def of(cls, settings: WorkerSettings, file: ModelFile, device: str) -> Self:
        """Plan for a model that is not yet loaded. Raises SettingsError, with the numbers and the fix."""
        dtype = compute_dtype(settings, device)
        max_length = _max_length(settings, file.config.context_length)
        weight_bytes = sum(_dense_bytes(info.shape, dtype) for info in file.tensors)
        kv_bytes_per_token = Cache.bytes_per_token(file.config, dtype)
        free = free_bytes(device)
        room_bytes = max(0, free - weight_bytes)
        num_pages = _num_pages(settings, device, max_length, PAGE_TOKENS * kv_bytes_per_token, room_bytes)
        return cls(dtype, max_length, weight_bytes, kv_bytes_per_token, num_pages, free)

    @property
    def kv_cache_tokens(self) -> int:
        return self.num_pages * PAGE_TOKENS

    @property
    def kv_cache_bytes(self) -> int:
        return self.kv_cache_tokens * self.kv_bytes_per_token

    @property
    def num_bytes(self) -> int:
        """Of weights and cache, besides the activations of a step."""
        return self.weight_bytes + self.kv_cache_bytes

    def check(self, model: str, device: str) -> None:
        """Raise SettingsError, with both numbers, when the device has no room for this."""
        if self.num_bytes > self.free_bytes:
            raise SettingsError(
                f"{model} takes {self.num_bytes:,} bytes as {self.dtype} with its KV cache, but {device} has "
                f"{self.free_bytes:,} free. Fix: a smaller model, HERD_DTYPE=bfloat16, or more memory"
            )


def compute_dtype(settings: WorkerSettings, device: str) -> torch.dtype:
    """The type of the arithmetic, and of weights, keys and values."""
    if settings.dtype == "auto":
        return torch.float32 if device == "cpu" else torch.bfloat16
    return torch.float32 if settings.dtype == "float32" else torch.bfloat16


def _dense_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Bytes of a weight as plain numbers; vectors are float32 whatever the compute dtype."""
    return math.prod(shape) * (torch.float32 if len(shape) == 1 else dtype).itemsize


def _max_length(settings: WorkerSettings, context_length: int) -> int:
    if settings.context_tokens > context_length:
        raise SettingsError(
            f"HERD_CONTEXT_TOKENS={settings.context_tokens}, but {settings.model.name} was made for "
            f"{context_length}. Fix: lower it, or leave it out"
        )
    return settings.context_tokens or context_length


def _num_pages(
    settings: WorkerSettings, device: str, max_length: int, bytes_per_page: int, room_bytes: int
) -> int:
    wanted = pages_for(settings.kv_cache_tokens) or settings.slots * pages_for(max_length)
    if settings.kv_cache_tokens and wanted * bytes_per_page > room_bytes:
        raise SettingsError(
            f"HERD_KV_CACHE_TOKENS={settings.kv_cache_tokens} takes {wanted * bytes_per_page:,} bytes, "
            f"but the weights leave {room_bytes:,} free on {device}. Fix: lower it"
        )
    return wanted if settings.kv_cache_tokens else max(1, min(wanted, room_bytes // 2 // bytes_per_page))
