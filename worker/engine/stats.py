"""The engine's figures: one frozen value, which any thread may read."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's figures after its last change."""

    num_steps: int = 0
    num_running: int = 0
    num_waiting: int = 0
    has_work: bool = False
    kv_cache_usage: float = 0.0  # share of the pages that sequences hold
    prefix_hit_rate: float = 0.0
    num_prefix_tokens: int = 0  # prompt tokens that were found in the cache
