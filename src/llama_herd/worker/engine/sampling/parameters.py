"""The numbers of a job on which a draw depends: one row each, read by every way to draw.

A new filter is a field of `SamplingParams` and a row here. The eager sampler, the sampler of slots and the
native draw take it from this table, and so do the words of a slot.

Letters: B rows, V vocabulary, N tokens in order, the likeliest first.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from llama_herd.tasks.protocol.sampling import SamplingParams

MINUS_INFINITY = float("-inf")

Probs = Callable[[], Tensor]

#: How far below a row's largest logit, after the temperature, another may be: (B, 1), negative. It takes
#: logits (B, V) before the temperature, the temperature, and the number, (B, 1) each.
Floor = Callable[[Tensor, Tensor, Tensor], Tensor]
#: Which tokens stay, where these are in order: (B, N) bool. It takes values (B, N) after the temperature,
#: what gives their probabilities (B, N), and the number (B, 1).
Keeps = Callable[[Tensor, Probs, Tensor], Tensor]


class Parameter(NamedTuple):
    """A field of `SamplingParams` that is a number; `off` is the value at which it changes nothing.

    A filter has a `floor`, which the native draw can do too, or it `keeps` tokens by their order.
    """

    field: str
    off: float
    floor: Floor | None = None
    keeps: Keeps | None = None

    def value_in(self, params: SamplingParams) -> float:
        number: float = getattr(params, self.field)
        return number


def _sigmas_below(logits: Tensor, temperature: Tensor, number: Tensor) -> Tensor:
    """Top-n-sigma (https://arxiv.org/abs/2411.07641): n standard deviations of a row's finite logits."""
    is_finite = logits.isfinite()
    num_finite = is_finite.sum(dim=-1, keepdim=True)
    finite = logits.masked_fill(~is_finite, 0.0)
    mean = finite.sum(dim=-1, keepdim=True) / num_finite
    square = (finite - mean).masked_fill(~is_finite, 0.0).square().sum(dim=-1, keepdim=True) / num_finite
    return torch.where(number > 0, -number * square.sqrt() / temperature, MINUS_INFINITY)


def _share_of_likeliest(logits: Tensor, temperature: Tensor, number: Tensor) -> Tensor:
    return number.log()


def _keep_top_k(values: Tensor, probs: Probs, number: Tensor) -> Tensor:
    ranks = torch.arange(values.shape[-1], device=values.device)
    return (ranks < number) | (number == 0)


def _keep_nucleus(values: Tensor, probs: Probs, number: Tensor) -> Tensor:
    """The smallest set whose probability reaches the number, so the likeliest token always stays."""
    likely = probs()
    before = likely.cumsum(dim=-1) - likely
    return (before < number) | (number >= 1)


PARAMETERS = (
    Parameter("temperature", 1.0),
    Parameter("top_n_sigma", 0.0, floor=_sigmas_below),
    Parameter("min_p", 0.0, floor=_share_of_likeliest),
    Parameter("top_k", 0.0, keeps=_keep_top_k),
    Parameter("top_p", 1.0, keeps=_keep_nucleus),
    Parameter("repetition_penalty", 1.0),
    Parameter("presence_penalty", 0.0),
    Parameter("frequency_penalty", 0.0),
    Parameter("repeat_last_n", -1.0),
)
FLOORS = tuple(one for one in PARAMETERS if one.floor is not None)
IN_ORDER = tuple(one for one in PARAMETERS if one.keeps is not None)

#: The numbers (B, 1) of a parameter in the rows of a step; None where it is off in all of them.
Numbers = Callable[[Parameter], Tensor | None]


def common_floor(logits: Tensor, temperature: Tensor, numbers: Numbers) -> Tensor | None:
    """How far below the largest all floors together let a logit be, after the temperature: (B, 1)."""
    found: Tensor | None = None
    for one in FLOORS:
        number = numbers(one)
        if number is not None and one.floor is not None:
            floor = one.floor(logits, temperature, number)
            found = floor if found is None else found.maximum(floor)
    return found


def mask_below_floor(scaled: Tensor, floor: Tensor | None) -> Tensor:
    """Return logits (B, V) with those that are further below the largest than a floor (B, 1) masked out."""
    if floor is None:
        return scaled
    return scaled.masked_fill(scaled - scaled.amax(dim=-1, keepdim=True) < floor, MINUS_INFINITY)


def filter_in_order(values: Tensor, numbers: Numbers, probs: Probs | None = None) -> Tensor:
    """Apply the filters that need tokens in order to values (B, N); what they drop becomes minus infinity.

    probs: of the values, where these are not all that may be drawn.
    """
    for one in IN_ORDER:
        number = numbers(one)
        if number is not None and one.keeps is not None:
            stays = one.keeps(values, probs or partial(values.softmax, dim=-1), number)
            values, probs = values.masked_fill(~stays, MINUS_INFINITY), None
    return values


def is_sorting(params: SamplingParams) -> bool:
    """Whether a filter needs tokens in order."""
    return any(one.value_in(params) != one.off for one in IN_ORDER)
