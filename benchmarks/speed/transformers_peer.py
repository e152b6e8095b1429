"""transformers' own Llama in bfloat16, not compiled: `transformers_peer.py FILE THREADS`."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks.peer import load_peer
from benchmarks.speed.child import ids, serve
from llama_herd.model.files.gguf_model import GGUFModel


class TransformersBatch:
    """A static batch; shorter rows are padded on the left. The longest prompt is computed once for all."""

    @torch.inference_mode()
    def __init__(self, model: Any, lengths: Sequence[int]) -> None:
        self._model, longest = model, max(lengths)
        first = model(torch.tensor([ids(longest)]), use_cache=True, logits_to_keep=1)
        self._cache: Any = first.past_key_values
        self._cache.batch_repeat_interleave(len(lengths))
        self._ids = first.logits[:, -1:].argmax(dim=-1).expand(len(lengths), 1)  # (B, 1)
        seen = torch.tensor(lengths)[:, None] + 1  # with the token that is computed next
        self._mask = (torch.arange(longest + 1) >= longest + 1 - seen).long()  # (B, S)
        self._positions = seen - 1

    @torch.inference_mode()
    def step(self) -> float:
        started_s = perf_counter()
        out = self._model(
            self._ids,
            attention_mask=self._mask,
            position_ids=self._positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = out.past_key_values
        self._ids = out.logits[:, -1:].argmax(dim=-1)  # (B, 1)
        self._mask = torch.cat([self._mask, torch.ones_like(self._ids)], dim=1)
        self._positions = self._positions[:, -1:] + 1
        return perf_counter() - started_s


class Transformers:
    def __init__(self, path: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        with GGUFModel.open(path) as file:
            self._model = load_peer(file, torch.bfloat16)
        self.facts: dict[str, Any] = {"version": version("transformers"), "dtype": "bfloat16"}

    @torch.inference_mode()
    def prefill_s(self, num_tokens: int) -> float:
        prompt = torch.tensor([ids(num_tokens)])
        started_s = perf_counter()
        self._model(prompt, use_cache=True, logits_to_keep=1).logits.argmax(dim=-1).item()
        return perf_counter() - started_s

    def batch(self, lengths: Sequence[int]) -> TransformersBatch:
        return TransformersBatch(self._model, lengths)


if __name__ == "__main__":
    serve(Transformers)
