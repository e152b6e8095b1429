"""What changes the logits of a row's next token before the draw: one row of a table each, for every runner.

A new rule is a field of `SamplingParams` and a row here. Without a form that can be captured its rows are
drawn by themselves, after the graph.

Letters: B rows, V vocabulary, P some of the rows, N ids of a row, S longest sequence, W words of a mask.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence as Rows
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from llguidance.numpy import fill_next_token_bitmask_par
from numpy.typing import NDArray
from torch import Tensor

from llama_herd.model.upload import Send, upload
from llama_herd.worker.engine.sampling.constraint import Constraint
from llama_herd.worker.engine.sampling.parameters import MINUS_INFINITY
from llama_herd.worker.engine.sampling.row import Penalties, SamplingRow
from llama_herd.worker.engine.slots import NUM_PROMPT, SlotRows

#: Changes the logits (B, V) of some rows, which come with their numbers. Contiguous memory, in place.
Apply: TypeAlias = Callable[[Tensor, Mapping[int, SamplingRow], Send], None]

#: Most entries penalised at once: as many as fit in a core's cache.
MOST_CELLS = 2**14

#: How much a token of the prompt counts: more than a text has tokens.
GIVEN = 1 << 32

#: A bit for each token, (B, W) int64: token t is bit t % 64 of word t // 64.
Masks: TypeAlias = NDArray[np.int64]

WORD_BITS = 64
HALF_BITS = 32


class Rule(NamedTuple):
    """One way in which jobs change the logits of their next tokens, by the fields of `SamplingParams`."""

    fields: tuple[str, ...]
    #: Whether it changes a row's next logits. It may end to do so as the output grows, but not begin.
    holds: Callable[[SamplingRow], bool]
    apply: Apply
    #: The same by what slots hold, for all rows at once, in a form that can be captured: no shape depends on
    #: a value. Its numbers are rows of `PARAMETERS`.
    in_slots: Callable[[Tensor, SlotRows], Tensor] | None = None
    #: Whether the log-probabilities that a job is told are those behind it. Such rules come first.
    is_told: bool = False


class Ruled(NamedTuple):
    """Logits (B, V) behind the rules: those to tell of, and those to draw by; as they were if none holds."""

    told: Tensor
    drawn: Tensor


def apply_rules(
    logits: Tensor, rows: Rows[SamplingRow], send: Send, slot_rows: SlotRows | None = None
) -> Ruled:
    """Apply all rules to logits (B, V), which stay as they are.

    slot_rows: of the same rows, where only the device knows their last tokens.
    """
    told = drawn = logits
    for rule in RULES:
        ruled = {number: row for number, row in enumerate(rows) if rule.holds(row)}
        if not ruled:
            continue
        if slot_rows is not None and rule.in_slots is not None:
            drawn = rule.in_slots(drawn, slot_rows)
        else:
            if drawn is told:
                drawn = drawn.clone(memory_format=torch.contiguous_format)
            rule.apply(drawn, ruled, send)
        if rule.is_told:
            told = drawn
    return Ruled(told, drawn)


def apply_in_slots(logits: Tensor, rows: SlotRows) -> Tensor:
    """The logits (B, V) behind all rules that can be captured."""
    for rule in RULES:
        if rule.in_slots is not None:
            logits = rule.in_slots(logits, rows)
    return logits


def is_ruled(row: SamplingRow) -> bool:
    """Whether any rule changes the logits of its next token."""
    return any(rule.holds(row) for rule in RULES)


def is_ruled_in_slots(row: SamplingRow) -> bool:
    """Whether a rule that can be captured does."""
    return any(rule.in_slots is not None and rule.holds(row) for rule in RULES)


def is_apart(row: SamplingRow) -> bool:
    """Whether its next token is drawn after the graph: more is asked than can be captured."""
    return row.params.logprobs or any(rule.in_slots is None and rule.holds(row) for rule in RULES)


def _constrain(logits: Tensor, rows: Mapping[int, SamplingRow], send: Send) -> None:
    """Minus infinity for each token that a row's schema or grammar does not let follow."""
    masks = masks_of([row.constraint for row in rows.values() if row.constraint is not None])
    for row, mask in zip(rows.values(), masks, strict=True):
        if row.early_ends:  # they go before `min_tokens`, unless nothing else may follow
            _hold_back(mask, row.early_ends)
    words = send(array("q", masks.tobytes())).view(masks.shape)
    is_forbidden = ~unpacked(words, logits.shape[-1])
    if len(rows) == len(logits):
        logits.masked_fill_(is_forbidden, MINUS_INFINITY)
    else:
        picked = send(list(rows))
        logits.index_copy_(0, picked, logits[picked].masked_fill_(is_forbidden, MINUS_INFINITY))


def masks_of(constraints: Rows[Constraint]) -> Masks:
    """The masks (B, W) of constraints, computed in parallel. A failed constraint lets no token follow."""
    first, num = constraints[0], len(constraints)
    halves = np.empty((num, -(-first.vocab_size // HALF_BITS)), np.int32)  # one more is refused
    matchers = [(one.matcher, row) for row, one in enumerate(constraints)]
    fill_next_token_bitmask_par(first.executor, matchers, halves)
    masks = np.zeros((num, -(-first.vocab_size // WORD_BITS)), np.int64)
    masks.view(np.int32)[:, : halves.shape[1]] = halves
    return masks


def _hold_back(mask: NDArray[np.int64], token_ids: Iterable[int]) -> None:
    """Forbid tokens in a mask (W,), unless nothing else may follow."""
    left = mask.copy()
    for token_id in token_ids:
        left[token_id // WORD_BITS] &= ~(np.int64(1) << np.int64(token_id % WORD_BITS))
    if left.any():
        mask[:] = left


def unpacked(masks: Tensor, vocab_size: int) -> Tensor:
    """Masks (B, W) as a flag for each token, where they are: (B, V) bool."""
    if masks.device.type != "cpu":
        return unpacked_there(masks, vocab_size)
    bits = np.unpackbits(masks.numpy().view(np.uint8), axis=-1, count=vocab_size, bitorder="little")
    return torch.from_numpy(bits.view(np.bool_))


def unpacked_there(masks: Tensor, vocab_size: int) -> Tensor:
    """The same by what a card can do. On a CPU the other way is 400 times as fast."""
    bits = torch.arange(WORD_BITS, device=masks.device)
    return ((masks.unsqueeze(-1) >> bits) & 1).flatten(1)[:, :vocab_size].bool()


def _penalise(logits: Tensor, rows: Mapping[int, SamplingRow], _: Send) -> None:
    """Change the logits of the ids that each row's penalties look at.

    Repetition penalty (https://arxiv.org/abs/1909.05858): a positive logit is divided by it, a negative one
    multiplied. Frequency and presence penalties are subtracted after it. Rows of similar length go together,
    padded to the longest, so that the host only copies memory.
    """
    flat, device = logits.view(-1), logits.device
    for group in _by_length(rows):
        longest = len(group[-1][1].ids)
        first_places = upload([number * logits.shape[-1] for number, _ in group], device)  # (P,)
        tokens = b"".join(_padded(penalties.ids, longest) for _, penalties in group)
        token_ids = upload(array("q", tokens), device).view(len(group), longest)  # (P, N)
        places = token_ids + first_places[:, None]
        addends = b"".join(_padded(penalties.addends, longest) for _, penalties in group)
        repetition = upload([penalties.repetition for _, penalties in group], device, torch.float32)[:, None]
        was = flat.index_select(0, places.view(-1)).view_as(places)
        penalised = torch.where(was > 0, was / repetition, was * repetition)
        penalised += upload(array("f", addends), device, torch.float32).view_as(places)
        flat.put_(places, penalised)


def _padded(numbers: "array[Any]", length: int) -> "array[Any]":
    """Pad with the first number. There must be at least one."""
    return numbers + numbers[:1] * (length - len(numbers))


def _by_length(rows: Mapping[int, SamplingRow]) -> Iterator[list[tuple[int, Penalties]]]:
    """The rows with something to penalise, and their numbers: the shortest first, in groups that fit."""
    numbered = [(number, row.penalties) for number, row in rows.items() if row.penalties is not None]
    group: list[tuple[int, Penalties]] = []
    for number, penalties in sorted(numbered, key=lambda one: len(one[1].ids)):
        if group and (len(group) + 1) * len(penalties.ids) > MOST_CELLS:
            yield group
            group = []
        if penalties.ids:
            group.append((number, penalties))
    if group:
        yield group


def _penalised(logits: Tensor, rows: SlotRows) -> Tensor:
    """The logits (B, V) after repetition, presence and frequency penalties.

    Which tokens count, and how often, is found anew from the ids before the one to be drawn.
    """
    ids, end = rows.ids, rows.next_positions.unsqueeze(-1)  # (B, S), (B, 1)
    at, window = torch.arange(ids.shape[-1], device=ids.device), rows.column("repeat_last_n")
    counts_at = (at < end) & ((at >= end - window) | (window < 0))  # (B, S)
    weights = torch.where(at < rows.integers(NUM_PROMPT).unsqueeze(-1), GIVEN, 1) * counts_at
    totals = torch.zeros(logits.shape, dtype=torch.int64, device=logits.device).scatter_add_(-1, ids, weights)
    counts = totals.gather(-1, ids)  # (B, S)
    num_drawn = counts % GIVEN
    presence, frequency = rows.exact("presence_penalty"), rows.exact("frequency_penalty")
    addends = torch.where(num_drawn > 0, -presence - frequency * num_drawn, 0.0).float()
    was, repetition = logits.gather(-1, ids), rows.column("repetition_penalty")
    now = torch.where(was > 0, was / repetition, was * repetition) + addends
    return logits.scatter(-1, ids, torch.where(counts > 0, now, was))


def _add_biases(logits: Tensor, rows: Mapping[int, SamplingRow], send: Send) -> None:
    _add(logits, {number: row.params.logit_bias for number, row in rows.items()}, send)


def _forbid_ends(logits: Tensor, rows: Mapping[int, SamplingRow], send: Send) -> None:
    """Forbid every token that ends the sequence before min_tokens."""
    ends = {number: dict.fromkeys(row.forbidden_ids, MINUS_INFINITY) for number, row in rows.items()}
    _add(logits, ends, send)


def _add(logits: Tensor, addends: Mapping[int, Mapping[int, float]], send: Send) -> None:
    """Add numbers to the logits of the given rows and tokens."""
    places, values = array("q"), array("d")
    for number, some in addends.items():
        first = number * logits.shape[-1]
        places.extend(first + token_id for token_id in some)
        values.extend(some.values())
    sent = send(array("q", values.tobytes())).view(torch.float64).float()  # by their bits
    logits.view(-1).index_add_(0, send(places), sent)


RULES = (
    Rule((), lambda row: row.constraint is not None, _constrain, is_told=True),
    Rule(
        ("repetition_penalty", "presence_penalty", "frequency_penalty", "repeat_last_n"),
        lambda row: row.penalties is not None,
        _penalise,
        in_slots=_penalised,
    ),
    Rule(("logit_bias",), lambda row: bool(row.params.logit_bias), _add_biases),
    Rule(("min_tokens",), lambda row: bool(row.forbidden_ids), _forbid_ends),
)
