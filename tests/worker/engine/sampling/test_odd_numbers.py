"""Every number that a field of a job can have: it is refused, or tokens are drawn with it."""

import json
import math
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from llama_herd.errors import InvalidJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.tasks.settings import Settings
from llama_herd.worker.engine.sampling.row import NO_TOKEN
from llama_herd.worker.engine.sampling.sampler import sample
from tests.worker.engine.sampling.rows import row

VOCABULARY = 50
#: Fields that hold one number.
FIELDS = sorted(
    name
    for name, field in SamplingParams.model_json_schema()["properties"].items()
    for kind in [field, *field.get("anyOf", ())]
    if kind.get("type") in ("number", "integer")
)
ODD = (
    *(0, -0.0, 1, -1, 5e-324, -5e-324, 2**-1074 * 3, 1e-320, 1e-310, 2.0**-1022, 2.0**-149, 1e-45, 1e-40),
    *(2.0**-126, 1.2e-38, 1e-37, 1e-30, 1e-20, 1e-10, 1e-7, 1e-5, 1e-3, 0.01, 0.1, 0.5, 1.5, 2, 10, 100),
    *(3.4e38, 3.5e38, 1e308, -1e308, 1.7976931348623157e308, 2**24 + 1, 2**31 - 1, 2**31, 2**32, 2**53),
    *(2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 2**1023, 10**400, math.inf, -math.inf, math.nan),
)


def close_to(number: float) -> Iterator[float]:
    """The number, and those next to it in float64 and float32."""
    yield number
    if isinstance(number, float) and math.isfinite(number):
        yield from (math.nextafter(number, math.inf), math.nextafter(number, -math.inf))
        if abs(number) < 3.4e38:
            (rounded,) = struct.unpack("f", struct.pack("f", number))
            yield rounded


def jobs(name: str) -> Iterator[SamplingParams]:
    """The field with each number, alone and beside others of a draw; those that are refused are left out."""
    beside: list[dict[str, Any]] = [
        {},
        {"temperature": 0},
        {"top_k": 5, "top_p": 0.9, "min_p": 0.1, "top_n_sigma": 2.0, "logprobs": True},
    ]
    for number in {repr(one): one for odd in ODD for one in close_to(odd)}.values():
        for others in beside:
            fields = {"prompt": "x", "sampling": {"max_tokens": 5, **others, name: number}}
            try:
                text = json.dumps(fields)
                yield GenerationJob.parse(text, Settings()).sampling
            except InvalidJob:
                pass


@pytest.mark.long
@pytest.mark.parametrize("name", FIELDS)
def test_a_number_is_refused_or_drawn_with(name: str) -> None:
    torch.manual_seed(0)
    params = list(jobs(name))
    assert params
    rows = [row(one, one.seed or 0, prompt_ids=range(30), ids=[1, 2, 2, 40]) for one in params]
    logits = torch.randn(1, VOCABULARY).mul(1000).repeat(len(rows), 1)
    wrong = [
        one.model_dump(include={name})
        for one, token in zip(params, sample(logits, rows), strict=True)
        if token.token_id == NO_TOKEN or not 0 <= token.token_id < VOCABULARY
    ]
    assert not wrong
