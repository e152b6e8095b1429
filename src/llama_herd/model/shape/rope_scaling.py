"""RoPE's scalings: each is a divisor for the speed of every pair, and a gain.

Letters: D head dim; pair i of D/2 turns by base^(-2i/D) a token.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

from llama_herd.model.reading.metadata import MAX_CONTEXT, MAX_SCALE, Metadata, quoted

#: YaRN's borders, in turns over the context that the model was made for.
BETA_FAST, BETA_SLOW = 32.0, 1.0

HELP = "Take a model without it, such as the variant for shorter texts."


class RopeScaling(NamedTuple):
    """A scaling of RoPE: divisors of the pairs' speeds (none: 1 each), and a gain of queries and keys."""

    divisors: tuple[float, ...] = ()
    gain: float = 1.0

    def slowed(self, divisors: Sequence[float]) -> Self:
        """Return the scaling with each pair slowed by its divisor besides."""
        own = self.divisors or (1.0,) * len(divisors)
        return self._replace(divisors=tuple(a * b for a, b in zip(own, divisors, strict=True)))


UNSCALED = RopeScaling()


class Pairs(NamedTuple):
    """The pairs of a head, before any scaling."""

    dim: int
    base: float

    def divisors(self, divisor: Callable[[int], float]) -> tuple[float, ...]:
        """The divisors of all pairs, by a function of a pair."""
        return tuple(divisor(pair) for pair in range(self.dim // 2))

    def turning(self, turns: float, context: int) -> float:
        """The pair, as a number between pairs, that turns so often in so many tokens."""
        return self.dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(self.base))


def gguf_scaling(metadata: Metadata, prefix: str, pairs: Pairs, context: int) -> RopeScaling:
    """Read the keys under `prefix` of a GGUF file. Raises ModelFileError for a kind that is not built."""

    def number(name: str, default: float) -> float:
        return metadata.number(f"{prefix}.scaling.{name}", 0, MAX_SCALE, default)

    kind = metadata.text(f"{prefix}.scaling.type", "linear")
    factor = number("factor", metadata.number(f"{prefix}.scale_linear", 0, MAX_SCALE, 1.0))
    context = metadata.integer(f"{prefix}.scaling.original_context_length", 1, MAX_CONTEXT, context)
    fast, slow = number("yarn_beta_fast", BETA_FAST), number("yarn_beta_slow", BETA_SLOW)
    own_gain, gain = number("attn_factor", 1.0), number("yarn_attn_factor", yarn_gain(factor))
    if kind == "none":
        return RopeScaling(gain=own_gain)
    if kind == "linear":
        return RopeScaling(linear_divisors(pairs, factor), own_gain)
    if kind == "yarn":
        share = number("yarn_ext_factor", 1.0)  # of the slowing that is done, beside none
        if share != 1:
            raise metadata.error(
                f"{prefix}.scaling.yarn_ext_factor", f"is {share}, which is not supported", HELP
            )
        return RopeScaling(yarn_divisors(pairs, factor, context, fast, slow), gain * own_gain)
    raise metadata.error(f"{prefix}.scaling.type", f"is {quoted(kind)}, which is not supported", HELP)


def json_scaling(rope: Metadata, pairs: Pairs, context: int) -> RopeScaling:
    """Read `rope_scaling` or `rope_parameters`. Raises ModelFileError for a kind that is not built."""
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return UNSCALED
    if kind not in ("linear", "llama3", "yarn"):
        raise rope.error("rope_type", f"is {quoted(kind)}, which is not supported", HELP)
    factor = rope.number("factor", 0, MAX_SCALE)
    if kind == "linear":
        return RopeScaling(linear_divisors(pairs, factor))
    context = rope.integer("original_max_position_embeddings", 1, MAX_CONTEXT, context)
    if kind == "llama3":
        low, high = (rope.number(f"{end}_freq_factor", 0, MAX_SCALE) for end in ("low", "high"))
        if low >= high:
            raise rope.error("low_freq_factor", f"is {low}, it must be below the high one, {high}")
        return RopeScaling(llama3_divisors(pairs, factor, context, low, high))
    if not rope.flag("truncate", True):
        raise rope.error("truncate", "is false, which is not supported", HELP)
    fast, slow = (
        rope.number("beta_fast", 0, MAX_SCALE, BETA_FAST),
        rope.number("beta_slow", 0, MAX_SCALE, BETA_SLOW),
    )
    return RopeScaling(yarn_divisors(pairs, factor, context, fast, slow), _json_yarn_gain(rope, factor))


def linear_divisors(pairs: Pairs, factor: float) -> tuple[float, ...]:
    """Positions stand closer by `factor`. Source: https://arxiv.org/abs/2306.15595"""
    return () if factor == 1 else pairs.divisors(lambda pair: factor)


def llama3_divisors(pairs: Pairs, factor: float, context: int, low: float, high: float) -> tuple[float, ...]:
    """Llama 3.1: pairs that turn less than `low` times in the context are slowed, others less or not.

    Source: https://arxiv.org/abs/2407.21783
    """

    def divisor(pair: int) -> float:
        turns: float = context / (2 * math.pi * pairs.base ** (2 * pair / pairs.dim))
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        return 1 / ((1 - kept) / factor + kept)

    return pairs.divisors(divisor)


def yarn_divisors(pairs: Pairs, factor: float, context: int, fast: float, slow: float) -> tuple[float, ...]:
    """YaRN: between the pairs that turn `fast` and `slow` times in the context, slowed more and more.

    Source: https://arxiv.org/abs/2309.00071
    """
    first = max(math.floor(pairs.turning(fast, context)), 0)
    last = min(math.ceil(pairs.turning(slow, context)), pairs.dim - 1)

    def divisor(pair: int) -> float:
        slowed = min(max((pair - first) / (last - first or 0.001), 0.0), 1.0)
        return 1 / (slowed / factor + 1 - slowed)

    return pairs.divisors(divisor)


def yarn_gain(factor: float, weight: float = 1.0) -> float:
    """The factor by which queries and keys become longer."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1


def _json_yarn_gain(rope: Metadata, factor: float) -> float:
    if "attention_factor" in rope:
        return rope.number("attention_factor", 0, MAX_SCALE)
    if "mscale" in rope and "mscale_all_dim" in rope:
        above, below = (rope.number(key, 0, MAX_SCALE) for key in ("mscale", "mscale_all_dim"))
        return yarn_gain(factor, above) / yarn_gain(factor, below)
    return yarn_gain(factor)
