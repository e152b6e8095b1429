"""What a start compiles is all that a model runs: no number of tokens asks for another form of a kernel."""

import json

from tests.model.kernels.gpu.test_compiled import compiled

#: Prints the forms of each kernel by the number of tokens, in a model of one width.
FORMS = """
import json
import torch
from gguf import GGMLQuantizationType as GGMLType
from benchmarks.compiled import form
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.kernels.gpu.block_parts import PARTED_TYPES, BlockParts
from llama_herd.model.kernels.gpu.products import dequantised, multiplied
from llama_herd.model.kernels.gpu.rows import adding, gating, normalising, turning

C, F, H, K, D = 512, 1024, 4, 2, 128
weight, cached = torch.ones(C), torch.zeros(2, K, 40, 64, D)

def launches(num_tokens):
    batch = Batch.from_chunks([Chunk((row,), 7, [3], 1) for row in range(num_tokens)])
    x, gate_up = torch.zeros(num_tokens, C), torch.zeros(num_tokens, 2 * F)
    cos, sin = torch.zeros(2, num_tokens, 1, D)
    yield "norm", normalising(x, weight, x, 1e-5)
    yield "sum", adding(x, x, weight, x, x, 1e-5, 1.0)
    yield "gate", gating(gate_up, torch.zeros(num_tokens, F), "silu")
    yield "RoPE", turning(torch.zeros(num_tokens, H + 2 * K, D), cos, sin, cached, batch.cells)
    for type in sorted(PARTED_TYPES):
        parts = BlockParts.empty(type, 48, C, "cpu")
        for count in (1, num_tokens + 1):  # a single token has a kernel of its own
            for launch in multiplied(torch.zeros(count, C), parts, torch.zeros(count, 48)):
                yield f"{launch.kernel.__name__} of {type.name}", launch
        found = parts.rows(torch.zeros(num_tokens, dtype=torch.int64))
        yield f"rows of {type.name}", dequantised(found, torch.zeros(num_tokens, C))

print(json.dumps([{name: repr(form(one)) for name, one in launches(n)} for n in (1, 2, 3, 5, 8, 15)]))
"""


def test_each_kernel_is_compiled_once_for_any_number_of_tokens() -> None:
    first, *others = json.loads(compiled("-c", FORMS))
    assert len(first) == 16
    for other in others:
        assert other == first
