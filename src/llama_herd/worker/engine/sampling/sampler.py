"""Logits to token ids, the whole batch at once, each row by its own parameters: by rows, or by slots.

Letters: B rows, V vocabulary, N candidate tokens.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence as Rows
from functools import partial
from math import isfinite
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from llama_herd.model.kernels.draw import Draw
from llama_herd.model.upload import upload
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.interface import SampledToken
from llama_herd.worker.engine.sampling.noise import gumbel, hash_prefix, mixed
from llama_herd.worker.engine.sampling.parameters import (
    MINUS_INFINITY,
    Numbers,
    Parameter,
    common_floor,
    filter_in_order,
    is_sorting,
    mask_below_floor,
)
from llama_herd.worker.engine.sampling.row import LEAST_TEMPERATURE, NO_TOKEN, SamplingRow
from llama_herd.worker.engine.sampling.rules import apply_rules, is_ruled, is_ruled_in_slots
from llama_herd.worker.engine.sampling.scores import Told, sampled_tokens
from llama_herd.worker.engine.slots import HASH, NUM_PROMPT, SlotRows

#: So many of the likeliest tokens mostly include all that top_p keeps, and so many nearly always.
NUCLEUS_TOKENS = 64, 1024


def sample(
    logits: Tensor,
    rows: Rows[SamplingRow],
    native: Draw | None = None,
    known: tuple[Tensor, Tensor] | None = None,
) -> list[SampledToken]:
    """Draw one token per row. logits: (B, V) float32. One read from the device, whatever the number of rows.

    First come the rules of `rules.py`, in their order there. A temperature of 0 or close to it takes the
    largest logit. Otherwise the temperature and the filters of `parameters.py`, in their order there, decide
    which tokens survive, and Gumbel-max draws one of them. A row whose logits contain NaN or infinity gets
    NO_TOKEN, and no other row is affected.

    A native draw finds the few tokens that can win before any noise is computed; the same one wins.
    `known`: the largest of these logits and their ids (B,), where they were found before.
    """
    send = partial(upload, device=logits.device)
    told, ruled = apply_rules(logits, rows, send)
    if known is not None and ruled is logits:
        largest, ids = known
    else:  # NaN is the largest
        largest, ids = ruled.max(dim=-1) if native is None else native.largest(ruled)  # (B,) each
    for numbers in _groups(rows):
        picked = upload(numbers, logits.device)
        some = ruled if len(numbers) == len(rows) else ruled[picked]
        ids[picked] = _draw(some, largest[picked], [rows[number] for number in numbers], native)
    ids = ids.masked_fill(~largest.isfinite(), NO_TOKEN)
    return sampled_tokens(ids, Told.if_any(told, ids, rows, send))


def takes_likeliest(row: SamplingRow) -> bool:
    """Whether its next token is that of the largest logit, and nothing more is asked of it."""
    return not (row.is_random or row.params.logprobs or is_ruled(row))


def likeliest(largest: Rows[float], ids: Rows[int]) -> list[SampledToken]:
    """The tokens of rows that take the likeliest one, by the largest logit of each and its id."""
    return [
        SampledToken(token_id if isfinite(logit) else NO_TOKEN)
        for logit, token_id in zip(largest, ids, strict=True)
    ]


def sample_each(logits: Tensor, rows: Rows[SamplingRow]) -> list[SampledToken]:
    """Draw one token per row, row by row: the bits of a row do not depend on the number of rows."""
    return [sample(logits[number : number + 1], [row])[0] for number, row in enumerate(rows)]


def _groups(rows: Rows[SamplingRow]) -> Iterable[list[int]]:
    """The rows that are drawn at random, grouped by how much sorting they need."""
    groups: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        if row.is_random:
            groups[_sorting(row.params)].append(number)
    return groups.values()


def _sorting(params: SamplingParams) -> Literal["none", "top_k", "nucleus"]:
    """How much of the vocabulary a row's filters need sorted; each costs far more than the one before."""
    if params.top_k:
        return "top_k"
    return "nucleus" if is_sorting(params) else "none"


def _draw(logits: Tensor, largest: Tensor, rows: Rows[SamplingRow], native: Draw | None) -> Tensor:
    """Gumbel-max over the survivors of one group, by its logits (B, V) and the largest of each row: (B,)."""
    temperature = _column([row.params.temperature for row in rows], logits)  # (B, 1)
    prefixes = _column([hash_prefix(row.seed, row.choice, row.position) for row in rows], logits)
    numbers = partial(_numbers, rows, logits.device)
    floor = common_floor(logits, temperature, numbers)  # (B, 1)
    if native is not None and _sorting(rows[0].params) == "none":
        bottom = torch.full_like(temperature, MINUS_INFINITY) if floor is None else floor
        found = native.candidates(logits, temperature, prefixes, largest, bottom)
        if found is not None:
            token_ids, counts = found  # (B, N)
            scaled = (logits.gather(-1, token_ids) / temperature).masked_fill(~counts, MINUS_INFINITY)
            return _winners(scaled, token_ids, prefixes)
    scaled = mask_below_floor(logits / temperature, floor)  # (B, V)
    return _winners(*_likeliest(scaled, rows, numbers), prefixes)


def _numbers(rows: Rows[SamplingRow], device: torch.device, parameter: Parameter) -> Tensor | None:
    """A parameter's number in each row (B, 1); None where it is off in all of them."""
    found = [parameter.value_in(row.params) for row in rows]
    if all(number == parameter.off for number in found):
        return None
    return upload(found, device, torch.float32).unsqueeze(-1)


def _winners(scaled: Tensor, token_ids: Tensor, prefixes: Tensor) -> Tensor:
    """The tokens with the largest logits plus noise: (B, N) to (B,)."""
    noise = gumbel(prefixes.to(torch.int32), token_ids.to(torch.int32))  # (B, N)
    winners = (scaled + noise).argmax(dim=-1, keepdim=True)
    return token_ids.gather(-1, winners).squeeze(-1)  # (B,)


def _likeliest(scaled: Tensor, rows: Rows[SamplingRow], numbers: Numbers) -> tuple[Tensor, Tensor]:
    """The logits that the filters by order leave of one group, and their ids: (B, N) each, N kept small."""
    num_tokens = scaled.shape[-1]
    match _sorting(rows[0].params):
        case "none":
            return scaled, torch.arange(num_tokens, device=scaled.device).expand_as(scaled)
        case "top_k":
            values, token_ids = scaled.topk(min(max(row.params.top_k for row in rows), num_tokens), dim=-1)
            return filter_in_order(values, numbers), token_ids
        case "nucleus":
            total = scaled.logsumexp(dim=-1, keepdim=True)  # (B, 1)
            values, token_ids = _sorted_nucleus(scaled, total, rows)
            return filter_in_order(values, numbers, lambda: (values - total).exp()), token_ids


def _sorted_nucleus(scaled: Tensor, total: Tensor, rows: Rows[SamplingRow]) -> tuple[Tensor, Tensor]:
    """The likeliest tokens in order, at least as many as top_p keeps: values and ids, (B, N) each.

    On a CPU a few are tried first, and more in the rows for which they do not suffice: sorting the whole
    vocabulary takes many times as long. On a GPU the check would make the host wait for the device.
    """
    num_tokens = scaled.shape[-1]
    tries = [num for num in NUCLEUS_TOKENS if num < num_tokens] if scaled.device.type == "cpu" else []
    first, *others = *tries, num_tokens
    values, token_ids = _in_order(scaled, first)
    top_p = _column([row.params.top_p for row in rows], scaled)
    for num in others:
        reached = (values - total).exp().sum(dim=-1, keepdim=True)
        short = (~(reached >= top_p)).squeeze(-1).nonzero().squeeze(-1)
        if not len(short):
            break
        room = (0, num - values.shape[-1])
        values, token_ids = pad(values, room, value=MINUS_INFINITY), pad(token_ids, room)
        values[short], token_ids[short] = _in_order(scaled[short], num)
    return values, token_ids


def _in_order(scaled: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """So many of the likeliest tokens, the first first: values and ids, (B, N) each."""
    if num < scaled.shape[-1]:
        values, token_ids = scaled.topk(num, dim=-1)
    else:
        values, token_ids = scaled.sort(dim=-1, descending=True, stable=True)
    return values, token_ids


def _column(values: list[int] | list[float], like: Tensor) -> Tensor:
    """A column of one number per row: (B, 1)."""
    dtype = torch.float32 if isinstance(values[0], float) else torch.int64
    return upload(values, like.device, dtype).unsqueeze(-1)


class Drawing(NamedTuple):
    """The work of a step's draw. Work that a row does not need leaves its drawn token the same."""

    is_random: bool = False
    is_sorted: bool = False
    is_ruled: bool = False

    @classmethod
    def of(cls, row: SamplingRow) -> Self:
        return cls(row.is_random, row.is_random and is_sorting(row.params), is_ruled_in_slots(row))

    def __or__(self, other: Self) -> Self:
        return type(self)(*(a or b for a, b in zip(self, other, strict=True)))


def drawn(logits: Tensor, rows: SlotRows, drawing: Drawing) -> Tensor:
    """Draw as `sample` does, by what slots hold: (B,) for logits (B, V) that all rules have changed.

    No number comes from the host, none goes there, and no shape depends on a value: it can be captured.
    """
    largest, ids = logits.max(dim=-1)  # (B,) each; NaN counts as the largest
    if drawing.is_random:
        asked = rows.column("temperature")
        is_random = asked >= LEAST_TEMPERATURE  # (B, 1)
        temperature = torch.where(is_random, asked, 1.0)
        floor = common_floor(logits, temperature, rows.numbers)
        scaled = mask_below_floor(logits / temperature, floor)  # (B, V)
        token_ids = torch.arange(scaled.shape[-1], device=scaled.device).expand_as(scaled)
        if drawing.is_sorted:
            scaled, token_ids = scaled.sort(dim=-1, descending=True, stable=True)
            scaled = filter_in_order(scaled, rows.numbers)
        position = rows.next_positions - rows.integers(NUM_PROMPT)  # in the output
        prefixes = mixed(rows.integers(HASH).to(torch.int32), position.to(torch.int32)).unsqueeze(-1)
        ids = torch.where(is_random.squeeze(-1), _winners(scaled, token_ids, prefixes), ids)
    return ids.masked_fill(~largest.isfinite(), NO_TOKEN)
