"""A row of a batch, as the engine would have it after these tokens."""

from collections.abc import Iterable, Sequence
from functools import partial

from torch import Tensor

from llama_herd.model.upload import upload
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.sampling.row import Penalties, SamplingRow
from llama_herd.worker.engine.sampling.rules import apply_rules


def ruled(logits: Tensor, rows: list[SamplingRow]) -> Tensor:
    """The logits (B, V) by which these rows draw."""
    return apply_rules(logits, rows, partial(upload, device=logits.device)).drawn


def row(
    params: SamplingParams,
    seed: int = 0,
    *,
    prompt_ids: Sequence[int] = (),
    ids: Sequence[int] = (),
    eos_ids: Iterable[int] = (),
) -> SamplingRow:
    penalties = Penalties.if_any(params, prompt_ids)
    if penalties is not None:
        for token_id in ids:
            penalties.add(token_id)
    return SamplingRow(params, seed, len(ids), penalties, frozenset(eos_ids))
