"""Where large weights enlarge float32's rounding, we are no further from float64 than transformers is."""

from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from llama_herd.model.config import LlamaConfig
from tests.model.forwards import random_ids
from tests.model.shape.test_families import all_logits, load, logits_of_all
from tests.model.tiny_family import TINY_FAMILIES, YARN, TinyFamily

if TYPE_CHECKING:
    from transformers import PreTrainedModel

pytestmark = pytest.mark.long

LENGTH = 150
FAMILIES = {
    "yarn with an attention factor": replace(
        TINY_FAMILIES["qwen2, yarn"], config={"rope_parameters": {**YARN, "attention_factor": 2.0}}
    ),
    "granite without multipliers": replace(TINY_FAMILIES["granite"], config={}),
}


def turn_in_float64(model: "PreTrainedModel", config: LlamaConfig) -> None:
    """Give a model in float64 a RoPE of the same; transformers makes its tables in float32."""
    half = config.head_dim // 2
    divisors = config.rope_scaling.divisors or (1.0,) * half
    speeds = [config.rope_base ** (-pair / half) / divisor for pair, divisor in enumerate(divisors)]
    exact = torch.tensor(speeds, dtype=torch.float64)
    rope = model.model.rotary_emb
    assert torch.allclose(rope.inv_freq.double(), exact, rtol=1e-6, atol=0)

    def forward(_: object, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].double() * torch.cat((exact, exact))
        return angles.cos() * config.rope_scaling.gain, angles.sin() * config.rope_scaling.gain

    rope.forward = MethodType(forward, rope)


@pytest.mark.parametrize("gain", [1.5, 3.0])
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_we_are_as_near_to_float64_as_transformers(family: TinyFamily, gain: float, tmp_path: Path) -> None:
    family, ids = replace(family, attention_gain=gain), random_ids(LENGTH)
    oracle = family.model()
    llama = load(family.write_folder(oracle, tmp_path))
    ours, theirs = logits_of_all(llama, ids, LENGTH), all_logits(oracle, ids)
    exact_oracle = family.model().double()
    turn_in_float64(exact_oracle, llama.config)
    exact = all_logits(exact_oracle, ids)
    error, their_error = ((logits.double() - exact).abs().max() for logits in (ours, theirs))
    assert error < 2 * their_error
    assert error < 2e-3
