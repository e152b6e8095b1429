"""What faster arithmetic changes: logits of the bundled model over its own tales, beside float32's.

    python -m benchmarks.exactness [--write]

Float32 in plain torch is within 3e-5 of float64 (tests/model/test_tolerance.py). All else computes in
bfloat16: plain torch, native kernels that take inputs as bytes, and native kernels by AMX, which cut weights
to bfloat16.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.harness import Benchmark, NoPlan, main
from benchmarks.report import Row, Table
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.kernels.native import Kernel, Kernels, load_kernels
from llama_herd.model.llama2 import Llama
from llama_herd.model.pages import pages_for
from llama_herd.model.weights.form import WeightForm
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.worker.loading.kernels import kernels_folder
from llama_herd.worker.settings import WorkerSettings

SEED, NUM_TEXTS, NUM_TOKENS = 1, 8, 256


def measure(_: NoPlan) -> Iterator[Table]:
    yield Table(list(runs()), "Against float32")


def runs() -> Iterator[Row]:
    torch.manual_seed(SEED)
    with GGUFModel.open(BUNDLED_MODEL) as file:
        plain = Llama.load(file)
        texts = [_text(plain) for _ in range(NUM_TEXTS)]
        exact = [_logits(plain, text, torch.float32) for text in texts]
        kernels = load_kernels(kernels_folder(WorkerSettings.read()))
        ways = {"plain torch": WeightForm.DENSE}
        for kernel in (Kernel.INT8, Kernel.TILES):
            if isinstance(kernels, Kernels) and kernel in kernels.kernels:
                ways[f"native, {kernel.name}"] = WeightForm.FASTEST.with_kernels(_only(kernels, kernel))
        for name, form in ways.items():
            llama = Llama.load(file, dtype=torch.bfloat16, form=form)
            found = [_logits(llama, text, torch.bfloat16) for text in texts]
            yield {"bfloat16": name, **_differences(torch.cat(found), torch.cat(exact))}


def _only(kernels: Kernels, kernel: Kernel) -> Kernels:
    """Those that multiply any number of tokens in one way."""
    ways = {kernel} if kernel is Kernel.INT8 else {kernel, Kernel.FLOAT32}
    return replace(kernels, kernels=frozenset(ways))


@torch.inference_mode()
def _text(llama: Llama) -> list[int]:
    """What the model itself writes, drawn from its own probabilities."""
    cache, ids = Cache(llama.config, num_pages=pages_for(NUM_TOKENS)), [1]
    pages = cache.pages.reserve("text", NUM_TOKENS) or ()
    while len(ids) < NUM_TOKENS:
        logits = llama.forward(Batch.from_chunks([Chunk(pages, len(ids) - 1, ids[-1:], 1)]), cache)
        ids.append(int(logits[0].softmax(dim=-1).multinomial(1)))
    return ids


@torch.inference_mode()
def _logits(llama: Llama, ids: list[int], dtype: torch.dtype) -> Tensor:
    """Those after each of the ids, as one prompt: (T, V)."""
    cache = Cache(llama.config, num_pages=pages_for(len(ids)), dtype=dtype)
    pages = cache.pages.reserve("text", len(ids)) or ()
    return llama.forward(Batch.from_chunks([Chunk(pages, 0, ids, len(ids))]), cache).double()


def _differences(found: Tensor, exact: Tensor) -> dict[str, float]:
    wanted = exact.log_softmax(dim=-1)
    divergence = (wanted.exp() * (wanted - found.log_softmax(dim=-1))).sum(dim=-1)  # (T,)
    return {
        "largest difference of a logit": float((found - exact).abs().max()),
        "mean difference of a logit": float((found - exact).abs().mean()),
        "mean KL divergence": float(divergence.mean()),
        "largest KL divergence": float(divergence.max()),
        "same likeliest token, %": 100 * float((found.argmax(-1) == exact.argmax(-1)).double().mean()),
    }


BENCHMARK = Benchmark("exactness", __doc__, NoPlan(), measure)

if __name__ == "__main__":
    main(BENCHMARK)
