"""Logits to token ids, the whole batch at once, each row by its own parameters.

Letters: B rows, V vocabulary, N candidate tokens.
"""

from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence as Rows
from enum import Enum
from functools import partial
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from llama_herd.model.kernels.draw import Draw
from llama_herd.model.upload import upload
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.interface import SampledToken
from llama_herd.worker.engine.sampling.masks import masks_for, unpacked
from llama_herd.worker.engine.sampling.noise import gumbel, hash_prefix
from llama_herd.worker.engine.sampling.parameters import (
    MINUS_INFINITY,
    Numbers,
    Parameter,
    common_floor,
    filter_in_order,
    is_sorting,
    mask_below_floor,
)
from llama_herd.worker.engine.sampling.penalties import Penalties
from llama_herd.worker.engine.sampling.row import NO_TOKEN, SamplingRow
from llama_herd.worker.engine.sampling.scores import Scores

#: Most entries penalised at once: as many as fit in a core's cache.
MOST_CELLS = 2**14


class Cells(NamedTuple):
    """Positions in the logits."""

    rows: Tensor  # (N,)
    tokens: Tensor  # (N,)

    @classmethod
    def from_rows(cls, tokens_by_row: Mapping[int, Collection[int]], device: torch.device) -> "Cells | None":
        """The given tokens of the given rows, in this order; None if there are none."""
        rows, tokens = list[int](), list[int]()
        for row, some in tokens_by_row.items():
            rows += [row] * len(some)
            tokens += some
        return cls(upload(rows, device), upload(tokens, device)) if rows else None


def apply_rules(logits: Tensor, rows: Rows[SamplingRow]) -> Tensor:
    """Apply penalties, then biases, then forbid tokens before min_tokens: (B, V), a copy if anything changes.

    Repetition penalty (https://arxiv.org/abs/1909.05858): a positive logit is divided by it, a negative one
    multiplied. Frequency and presence penalties are subtracted after it.
    """
    if all(row.is_plain for row in rows):
        return logits
    logits = logits.clone(memory_format=torch.contiguous_format)
    _penalise(logits, rows)
    _add_biases(logits, rows)
    _hold_back_ends(logits, rows)
    return logits


def _penalise(logits: Tensor, rows: Rows[SamplingRow]) -> None:
    """Change the logits of the ids that each row's penalties look at. logits: (B, V), contiguous.

    Rows of similar length go together, padded to the longest, so that the host only copies memory.
    """
    flat, device = logits.view(-1), logits.device
    for group in _by_length(rows):
        longest = len(group[-1][1].ids)
        first_places = upload([number * logits.shape[-1] for number, _ in group], device)  # (P,)
        tokens = b"".join(penalties.padded_ids(longest) for _, penalties in group)
        places = (
            upload(array("q", tokens), device).view(len(group), longest) + first_places[:, None]
        )  # (P, N)
        addends = b"".join(penalties.padded_addends(longest) for _, penalties in group)
        repetition = upload([penalties.repetition for _, penalties in group], device, torch.float32)[:, None]
        was = flat.index_select(0, places.view(-1)).view_as(places)
        penalised = torch.where(was > 0, was / repetition, was * repetition)
        penalised += upload(array("f", addends), device, torch.float32).view_as(places)
        flat.put_(places, penalised)


def _by_length(rows: Rows[SamplingRow]) -> Iterator[list[tuple[int, Penalties]]]:
    """The rows with something to penalise, and their numbers: the shortest first, in groups that fit."""
    numbered = [(number, row.penalties) for number, row in enumerate(rows) if row.penalties is not None]
    group: list[tuple[int, Penalties]] = []
    for number, penalties in sorted(numbered, key=lambda one: len(one[1].ids)):
        if group and (len(group) + 1) * len(penalties.ids) > MOST_CELLS:
            yield group
            group = []
        if penalties.ids:
            group.append((number, penalties))
    if group:
        yield group


def _add_biases(logits: Tensor, rows: Rows[SamplingRow]) -> None:
    _add(logits, {number: row.params.logit_bias for number, row in enumerate(rows)})


def _hold_back_ends(logits: Tensor, rows: Rows[SamplingRow]) -> None:
    """Forbid every token that ends the sequence before min_tokens."""
    forbidden = {number: row.forbidden_ids for number, row in enumerate(rows)}
    _add(logits, {number: dict.fromkeys(ids, MINUS_INFINITY) for number, ids in forbidden.items()})


def _add(logits: Tensor, numbers: Mapping[int, Mapping[int, float]]) -> None:
    """Add numbers to the logits of the given rows and tokens."""
    cells = Cells.from_rows(numbers, logits.device)
    if cells is not None:
        values = [value for row in numbers.values() for value in row.values()]
        addends = upload(values, logits.device, torch.float32)  # (N,)
        logits.index_put_((cells.rows, cells.tokens), addends, accumulate=True)


#: This many of the likeliest tokens nearly always include all that top_p keeps.
NUCLEUS_TOKENS = 1024


def sample(
    logits: Tensor,
    rows: Rows[SamplingRow],
    native: Draw | None = None,
    known: tuple[Tensor, Tensor] | None = None,
) -> list[SampledToken]:
    """Draw one token per row. logits: (B, V) float32. One read from the device, whatever the number of rows.

    First a constraint forbids what it does not let follow. Then come penalties and biases. A temperature of
    0 or close to it takes the largest logit. Otherwise the temperature and the filters of `parameters.py`, in
    their order there, decide which tokens survive, and Gumbel-max draws one of them. A row whose logits
    contain NaN or infinity gets NO_TOKEN, and no other row is affected.

    A native draw finds the few tokens that can win before any noise is computed; the same one wins.
    `known`: the largest of these logits and their ids (B,), where they were found before.
    """
    unruled = logits
    logits = constrained(logits, rows)
    ruled = apply_rules(logits, rows)
    if known is not None and ruled is unruled:
        largest, ids = known
    else:  # NaN is the largest
        largest, ids = ruled.max(dim=-1) if native is None else native.largest(ruled)  # (B,) each
    for numbers in _groups(rows):
        picked = upload(numbers, logits.device)
        some = ruled if len(numbers) == len(rows) else ruled[picked]
        ids[picked] = _draw(some, largest[picked], [rows[number] for number in numbers], native)
    ids = ids.masked_fill(~largest.isfinite(), NO_TOKEN)
    if any(row.params.logprobs for row in rows):
        return _with_logprobs(logits, ids, rows)
    return [SampledToken(token_id) for token_id in ids.tolist()]


def likeliest(largest: Rows[float], ids: Rows[int]) -> list[SampledToken]:
    """The tokens of rows that take the likeliest one, by the largest logit of each and its id."""
    return [
        SampledToken(token_id if isfinite(logit) else NO_TOKEN)
        for logit, token_id in zip(largest, ids, strict=True)
    ]


def constrained(logits: Tensor, rows: Rows[SamplingRow]) -> Tensor:
    """Minus infinity for each token that a row's constraint does not let follow: (B, V), a copy if any."""
    numbers = [number for number, row in enumerate(rows) if row.constraint is not None]
    if not numbers:
        return logits
    masks = masks_for([rows[number] for number in numbers])
    is_forbidden = ~unpacked(masks, logits.shape[-1]).to(logits.device)
    if len(numbers) == len(rows):
        return logits.masked_fill(is_forbidden, MINUS_INFINITY)
    picked = upload(numbers, logits.device)
    return logits.index_copy(0, picked, logits[picked].masked_fill(is_forbidden, MINUS_INFINITY))


def sample_each(logits: Tensor, rows: Rows[SamplingRow]) -> list[SampledToken]:
    """Draw one token per row, row by row: the bits of a row do not depend on the number of rows."""
    return [sample(logits[number : number + 1], [row])[0] for number, row in enumerate(rows)]


def _groups(rows: Rows[SamplingRow]) -> Iterable[list[int]]:
    """The rows that are drawn at random, grouped by how much sorting they need."""
    groups: dict[Sorting, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        if row.is_random:
            groups[Sorting.wanted_by(row.params)].append(number)
    return groups.values()


class Sorting(Enum):
    """How much of the vocabulary a row's filters need sorted; each costs far more than the one before."""

    NONE = 1
    TOP_K = 2
    NUCLEUS = 3

    @classmethod
    def wanted_by(cls, params: SamplingParams) -> "Sorting":
        if params.top_k:
            return cls.TOP_K
        return cls.NUCLEUS if is_sorting(params) else cls.NONE


def _draw(logits: Tensor, largest: Tensor, rows: Rows[SamplingRow], native: Draw | None) -> Tensor:
    """Gumbel-max over the survivors of one group, by its logits (B, V) and the largest of each row: (B,)."""
    temperature = _column([row.params.temperature for row in rows], logits)  # (B, 1)
    prefixes = _column([hash_prefix(row.seed, row.choice, row.position) for row in rows], logits)
    numbers = partial(_numbers, rows, logits.device)
    floor = common_floor(logits, temperature, numbers)  # (B, 1)
    if native is not None and Sorting.wanted_by(rows[0].params) is Sorting.NONE:
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
    match Sorting.wanted_by(rows[0].params):
        case Sorting.NONE:
            return scaled, torch.arange(num_tokens, device=scaled.device).expand_as(scaled)
        case Sorting.TOP_K:
            values, token_ids = scaled.topk(min(max(row.params.top_k for row in rows), num_tokens), dim=-1)
            return filter_in_order(values, numbers), token_ids
        case Sorting.NUCLEUS:
            total = scaled.logsumexp(dim=-1, keepdim=True)  # (B, 1)
            values, token_ids = _sorted_nucleus(scaled, total, rows)
            return filter_in_order(values, numbers, lambda: (values - total).exp()), token_ids


def _sorted_nucleus(scaled: Tensor, total: Tensor, rows: Rows[SamplingRow]) -> tuple[Tensor, Tensor]:
    """The likeliest tokens in order, at least as many as top_p keeps: values and ids, (B, N) each.

    On a CPU a few are tried first: sorting the whole vocabulary takes many times as long. On a GPU the check
    whether they suffice would make the host wait for the device.
    """
    if scaled.device.type == "cpu" and scaled.shape[-1] > NUCLEUS_TOKENS:
        values, token_ids = scaled.topk(NUCLEUS_TOKENS, dim=-1)
        reached = (values - total).exp().sum(dim=-1, keepdim=True)
        if bool((reached >= _column([row.params.top_p for row in rows], scaled)).all()):
            return values, token_ids
    values, token_ids = scaled.sort(dim=-1, descending=True, stable=True)
    return values, token_ids


def score_tokens(logits: Tensor, token_ids: Rows[int], num_top: int) -> list[SampledToken]:
    """Tokens with the log-probabilities that logits (B, V) give them, and the likeliest alternatives."""
    return Scores.from_logits(logits, upload(token_ids, logits.device), num_top).tokens()


def _with_logprobs(logits: Tensor, ids: Tensor, rows: Rows[SamplingRow]) -> list[SampledToken]:
    """The drawn tokens with their log-probabilities before any rule or temperature, but for constraints."""
    scored = Scores.from_logits(logits, ids, max(row.params.top_logprobs for row in rows)).tokens()
    return [
        token._replace(top=token.top[: row.params.top_logprobs])
        if row.params.logprobs
        else SampledToken(token.token_id)
        for row, token in zip(rows, scored, strict=True)
    ]


def _column(values: list[int] | list[float], like: Tensor) -> Tensor:
    """A column of one number per row: (B, 1)."""
    dtype = torch.float32 if isinstance(values[0], float) else torch.int64
    return upload(values, like.device, dtype).unsqueeze(-1)
