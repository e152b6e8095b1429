"""The ordinary mode's law: every logit lies within TOLERANCE of a forward of the same weights in float64."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.llama2 import Llama
from llama_herd.model.tiling import FIXED, FREE, Tiling
from llama_herd.worker.settings import BUNDLED_MODEL
from tests.closeness import assert_close
from tests.model.float64 import logits64
from tests.tiny import stored_weights, write_tiny_gguf

pytestmark = pytest.mark.long

#: Of logits up to 16; measured: 2e-5 on the bundled model, 5e-5 through 16 random layers.
TOLERANCE = 1e-4
#: In bfloat16, which has 8 bits; measured: 0.16 on the bundled model, 0.26 through 16 random layers.
TOLERANCE_BFLOAT16 = 0.5
LENGTHS = (320, 150, 77, 1)


@pytest.fixture(scope="module", params=["bundled", pytest.param("deep", marks=pytest.mark.long)])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if request.param == "bundled":
        return BUNDLED_MODEL
    path = tmp_path_factory.mktemp("deep") / "deep.gguf"
    return write_tiny_gguf(path, num_layers=16, hidden_size=256, num_heads=8, ffn_size=320)


@pytest.fixture(scope="module")
def texts(path: Path) -> list[list[int]]:
    with GGUFModel.open(path) as file:
        vocab_size = file.config.vocab_size
    rng = random.Random(path.stem)
    return [rng.choices(range(3, vocab_size), k=length) for length in LENGTHS]


@pytest.fixture(scope="module")
def exact(path: Path, texts: list[list[int]]) -> list[Tensor]:
    """Logits of every token of each text, in float64."""
    with GGUFModel.open(path) as file:
        config = file.config
    weights = {name: weight.double() for name, weight in stored_weights(path).items()}
    return [logits64(weights, config, text) for text in texts]


def logits_by_sequence(
    llama: Llama, dtype: torch.dtype, texts: list[list[int]], rng: random.Random
) -> list[Tensor]:
    """Logits of every token: all sequences together, each cut at random, so that prefill meets decode."""
    cache = Cache(llama.config, num_pages=16, dtype=dtype)
    pages = [cache.pages.reserve(str(number), len(text)) or () for number, text in enumerate(texts)]
    done: list[list[Tensor]] = [[] for _ in texts]
    starts = [0] * len(texts)
    while unfinished := [row for row, text in enumerate(texts) if starts[row] < len(text)]:
        ids = {row: texts[row][starts[row] :][: rng.choice((1, 1, 5, 64, 200))] for row in unfinished}
        chunks = [Chunk(pages[row], starts[row], some, num_logits=len(some)) for row, some in ids.items()]
        logits = llama.forward(Batch.of(chunks, "cpu", llama.tiling.span_tokens), cache)
        for row, part in zip(ids, torch.split(logits, [len(some) for some in ids.values()]), strict=True):
            done[row].append(part)
            starts[row] += len(part)
    return [torch.cat(parts) for parts in done]


@pytest.mark.parametrize(
    ("tiling", "dtype", "tolerance"),
    [
        (FREE, torch.float32, TOLERANCE),
        (FIXED, torch.float32, TOLERANCE),
        (FREE, torch.bfloat16, TOLERANCE_BFLOAT16),
    ],
    ids=["ordinary", "deterministic", "bfloat16"],
)
def test_every_logit_is_near_a_plain_forward_in_float64(
    path: Path,
    texts: list[list[int]],
    exact: list[Tensor],
    tiling: Tiling,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    with GGUFModel.open(path) as file:
        llama = Llama.load(file, dtype=dtype, tiling=tiling)
    rng = random.Random(path.stem)
    for ours, right in zip(logits_by_sequence(llama, dtype, texts, rng), exact, strict=True):
        assert_close(ours.double(), right, atol=tolerance, rtol=0)
