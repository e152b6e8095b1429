"""How large the benchmark is: on a card, and on a CPU to see that every part of it runs."""

from dataclasses import dataclass

from llama_herd.model.config import LlamaConfig
from llama_herd.model.pages import PAGE_TOKENS, pages_for


@dataclass(frozen=True)
class Load:
    """Requests that come at once, and the rows that the engine has for them."""

    num_requests: int
    num_in: int  # tokens of each prompt
    num_out: int  # tokens that each is to generate
    num_rows: int

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
    arrivals_s: float  # how long requests arrive
    num_runs: int  # counted, after one that is not
    num_peer_requests: int  # for the peer that would take too long over all of W3
    probe_bytes: int  # moved when ceilings are measured
    probe_size: int  # rows and columns of the matrices that are multiplied then
    num_profiled_steps: int

    @property
    def is_dry(self) -> bool:
        """Whether its figures mean nothing."""
        return self is DRY


FULL = Scale(
    name="Llama-2-7B",
    config=LlamaConfig.llama2_7b(),
    single=Load(1, 384, 256, 1),
    batch=Load(64, 384, 256, 64),
    saturation=Load(1024, 256, 256, 256),
    arrivals=Load(1, 256, 128, 256),
    prompts=Load(8, 512, 1, 8),
    arrivals_s=60.0,
    num_runs=3,
    num_peer_requests=256,
    probe_bytes=1 << 33,
    probe_size=8192,
    num_profiled_steps=8,
)

DRY = Scale(
    name="dry-run",
    config=LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=4,
        head_dim=16,
        ffn_size=128,
        context_length=256,
        rms_eps=1e-5,
        rope_base=10_000.0,
        rope_dim=16,
    ),
    single=Load(1, 24, 8, 1),
    batch=Load(4, 24, 8, 4),
    saturation=Load(16, 16, 8, 8),
    arrivals=Load(1, 16, 4, 8),
    prompts=Load(2, 64, 1, 2),
    arrivals_s=0.5,
    num_runs=1,
    num_peer_requests=4,
    probe_bytes=1 << 24,
    probe_size=128,
    num_profiled_steps=2,
)
