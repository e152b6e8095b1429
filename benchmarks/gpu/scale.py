"""How large the benchmark is: on a card, and on a CPU to see that every part of it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from llama_herd.model.config import LlamaConfig
from llama_herd.model.pages import PAGE_TOKENS, pages_for

#: Ways to draw, by name: greedily, as jobs do that say nothing of it, sorted, and by a rule of the host's.
DRAWS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature": {"temperature": 0.8},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
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

    @property
    def cache_tokens(self) -> int:
        """Room of the KV cache with which all rows can be busy."""
        return self.num_rows * pages_for(self.num_in + self.num_out) * PAGE_TOKENS

    @property
    def label(self) -> str:
        return f"{self.num_requests} x {self.num_in} in / {self.num_out} out"


@dataclass(frozen=True)
class Scale:
    """Shapes and lengths of all workloads."""

    name: str
    config: LlamaConfig
    single: Load  # W1
    batch: Load  # W2
    saturation: Load  # W3
    arrivals: Load  # W4: of one request; how many come, the rate says
    prompts: Load  # W5
    profiled: tuple[Load, ...]
    compared_rows: tuple[int, ...]  # with choices and without
    arrivals_s: float  # how long requests arrive
    reserve_bytes: float  # of a card, for all but weights and cache
    num_peer_requests: int  # for the peer that would take too long over all of W3
    num_profiled_steps: int


def short(scale: Scale) -> Scale:
    """With as few tokens as a median needs: the first rows of a batch wait for the prompts of the last."""
    single, batch = scale.single, scale.batch
    return replace(
        scale,
        single=replace(single, num_out=min(48, single.num_out)),
        batch=replace(batch, num_out=min(128, batch.num_out)),
        profiled=scale.profiled[:2],
    )


FULL = Scale(
    name="Llama-2-7B",
    config=LlamaConfig.llama2_7b(),
    single=Load(1, 384, 256, 1),
    batch=Load(64, 384, 256, 64),
    saturation=Load(1024, 256, 256, 256),
    arrivals=Load(1, 256, 128, 256),
    prompts=Load(8, 512, 1, 8),
    profiled=(Load(1, 384, 64, 1), Load(64, 384, 128, 64), Load(256, 64, 64, 256)),
    compared_rows=(1, 8, 64),
    arrivals_s=30.0,
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
    arrivals=Load(1, 16, 4, 8),
    prompts=Load(2, 64, 1, 2),
    profiled=(Load(1, 24, 8, 1), Load(4, 24, 8, 4)),
    compared_rows=(1, 4),
    arrivals_s=0.5,
    reserve_bytes=0.0,
    num_peer_requests=4,
    num_profiled_steps=2,
)
