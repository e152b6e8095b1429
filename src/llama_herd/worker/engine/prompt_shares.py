"""Which prompts have how much of a step's budget."""

from itertools import groupby

from llama_herd.worker.engine.sequence import Sequence

#: Most prompt tokens that a step scores: each takes a row of logits over the whole vocabulary.
MAX_SCORED_TOKENS = 512


def watched_tokens(running: list[Sequence]) -> int:
    """The prompt tokens of those that cannot wait, if all that decode can."""
    if not all(one.can_wait for one in running if one.decodes):
        return 0
    return sum(one.num_uncached for one in running if not (one.decodes or one.can_wait))


def shares_of(prefilling: list[Sequence], budget: int, of_oldest: int) -> dict[Sequence, int]:
    """Tokens for each prefilling sequence, those of the highest priority first.

    Among these some for the oldest, the rest for the shortest. So no prompt waits for ever for equal ones,
    and a short prompt does not wait for a long one.
    """
    in_order = sorted(prefilling, key=lambda one: -one.priority)
    wanted, shares, left = _wanted_tokens(in_order), dict.fromkeys(in_order, 0), budget
    for _, level in groupby(in_order, key=lambda one: one.priority):
        oldest, *others = level
        shares[oldest] = min(wanted[oldest], of_oldest, left)
        left -= shares[oldest]
        for sequence in sorted((oldest, *others), key=lambda one: one.num_uncached):
            more = min(wanted[sequence] - shares[sequence], left)
            shares[sequence] += more
            left -= more
    return shares


def _wanted_tokens(prefilling: list[Sequence]) -> dict[Sequence, int]:
    """How many tokens each needs; scored prompts, the first ones first, no more than a step may score."""
    wanted, left = {}, MAX_SCORED_TOKENS
    for sequence in prefilling:
        wanted[sequence] = sequence.num_uncached
        if sequence.scores_prompt:
            wanted[sequence] = min(sequence.num_uncached, left)
            left -= wanted[sequence]
    return wanted
