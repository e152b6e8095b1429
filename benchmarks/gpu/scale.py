"""How large the benchmark is: on a card, and on a CPU to see that every part of it runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from benchmarks.shapes import LLAMA_2_7B
from llama_herd.model.config import LlamaConfig
from llama_herd.model.pages import PAGE_TOKENS, pages_for

#: Ways to draw, by name: greedily, as jobs do that say nothing of it, sorted, and by a rule of the host's.
DRAWS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.8},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "min_tokens": {"temperature": 0, "min_tokens": 4_096},
}


@dataclass(frozen=True)
class Load:
    """Requests that come at once, and the rows that the engine has for them."""

    num_requests: int
    num_in: int  # tokens of each prompt
    num_out: int  # tokens that each is to generate
    num_rows: int
    draw: str = "greedy"
    spread: int = 0  # outputs are drawn uniformly, from so much less than num_out to so much more

    @property
    def cache_tokens(self) -> int:
        """Room of the KV cache with which all rows can be busy."""
        return self.num_rows * pages_for(self.num_in + self.num_out + self.spread) * PAGE_TOKENS

    @property
    def label(self) -> str:
        least, most = self.num_out - self.spread, self.num_out + self.spread
        out = f"{least} to {most}" if self.spread else str(most)
        return f"{self.num_requests} x {self.num_in} in / {out} out"

    def outputs(self, seed: int) -> list[int]:
        """How many tokens each request is to generate."""
        chance, (least, most) = Random(seed), (self.num_out - self.spread, self.num_out + self.spread)
        return [chance.randint(least, most) for _ in range(self.num_requests)]


@dataclass(frozen=True)
class Scale:
    """Shapes and lengths of all workloads."""

    name: str
    config: LlamaConfig
    single: Load  # W1
    batch: Load  # W2
    saturation: Load  # W3
    spread: Load  # W3s: of the same mean, but rows begin and end at all times
    arrivals: Load  # W4: of one request; how many come, the rate says
    prompts: Load  # W5
    mixed: Load  # rows that decode beside prompts, which are as long as those of W3
    mixed_tokens: tuple[int, ...]  # of prompts, in a step
    killed: Load  # of jobs in two workers that are killed; each has so many rows
    profiled: tuple[Load, ...]
    compared_rows: tuple[int, ...]  # with choices and without
    arrivals_s: float  # how long requests arrive
    reserve_bytes: float  # of a card, for all but weights and cache
    num_peer_requests: int  # for the peer that would take too long over all of W3
    num_profiled_steps: int


FULL = Scale(
    name="Llama-2-7B",
    config=LLAMA_2_7B,
    single=Load(1, 384, 256, 1),
    batch=Load(64, 384, 256, 64),
    saturation=Load(1024, 256, 256, 256),
    spread=Load(1024, 256, 256, 256, "top_p", spread=192),
    arrivals=Load(1, 256, 128, 256),
    prompts=Load(8, 512, 1, 8),
    mixed=Load(240, 384, 64, 240),
    mixed_tokens=(0, 64, 128, 256, 512, 1024, 2048),
    killed=Load(256, 128, 200, 64),
    profiled=(Load(1, 384, 64, 1), Load(64, 384, 128, 64)),
    compared_rows=(1, 8, 64),
    arrivals_s=12.0,
    reserve_bytes=3e9,
    num_peer_requests=256,
    num_profiled_steps=8,
)

DRY = Scale(
    name="dry-run",
    config=LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        num_layers=2,
        num_heads=4,
        num_kv_heads=4,
        head_dim=64,
        ffn_size=256,
        context_length=256,
        rms_eps=1e-5,
        rope_base=10_000.0,
        rope_dim=64,
    ),
    single=Load(1, 24, 8, 1),
    batch=Load(4, 24, 8, 4),
    saturation=Load(16, 16, 8, 8),
    spread=Load(16, 16, 8, 8, "top_p", spread=4),
    arrivals=Load(1, 16, 4, 8),
    prompts=Load(2, 64, 1, 2),
    mixed=Load(4, 24, 32, 4),
    mixed_tokens=(0, 16, 48),
    killed=Load(24, 16, 200, 4),
    profiled=(Load(1, 24, 8, 1), Load(4, 24, 8, 4)),
    compared_rows=(1, 4),
    arrivals_s=0.5,
    reserve_bytes=0.0,
    num_peer_requests=4,
    num_profiled_steps=2,
)
