"""transformers' Llama in the fastest type, not compiled: `transformers_peer.py FILE THREADS ROWS CACHE`."""

from collections.abc import Sequence
from importlib.metadata import version
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.peer import load_peer
from benchmarks.speed.child import Room, serve
from benchmarks.speed.machine import float_type, type_name
from llama_herd.model.files.gguf_model import GGUFModel


class TransformersBatch:
    """A static batch; shorter rows are padded on the left. Of a step the forward is timed."""

    @torch.inference_mode()
    def __init__(self, model: Any, prompts: Sequence[list[int]]) -> None:
        self._model, longest = model, max(map(len, prompts))
        rows = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
        lengths = torch.tensor([len(prompt) for prompt in prompts])[:, None]
        self._mask = (torch.arange(longest) >= longest - lengths).long()  # (B, S)
        positions = (self._mask.cumsum(dim=1) - 1).clamp(min=0)
        self._cache: Any = None
        self._forward(torch.tensor(rows), positions)

    @torch.inference_mode()
    def step(self) -> float:
        self._mask = torch.cat([self._mask, torch.ones_like(self._ids)], dim=1)
        return self._forward(self._ids, self._mask.sum(dim=1, keepdim=True) - 1)

    def _forward(self, ids: Tensor, positions: Tensor) -> float:
        is_padded = not bool(self._mask.all())
        started_s = perf_counter()
        out = self._model(
            ids,
            attention_mask=self._mask if is_padded else None,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        took_s = perf_counter() - started_s
        self._cache, self._ids = out.past_key_values, out.logits[:, -1:].argmax(dim=-1)  # (B, 1)
        return took_s


class Transformers:
    def __init__(self, room: Room) -> None:
        torch.set_num_threads(room.threads)
        with GGUFModel.open(room.path) as file:
            self._model = load_peer(file, float_type())
        self.facts: dict[str, Any] = {"version": version("transformers"), "dtype": type_name()}

    @torch.inference_mode()
    def prefill_s(self, prompt: list[int]) -> float:
        ids = torch.tensor([prompt])
        started_s = perf_counter()
        self._model(ids, use_cache=True, logits_to_keep=1)
        return perf_counter() - started_s

    def batch(self, prompts: Sequence[list[int]]) -> TransformersBatch:
        return TransformersBatch(self._model, prompts)


if __name__ == "__main__":
    serve(Transformers)
