"""The ordinary mode's law: how far logits may lie from a forward of the same weights in float64.

float32 is held logit by logit. bfloat16, a worker's default where the processor has it, is held by the error
of a token: the root mean square of the errors of its logits, as a share of their spread, which is the
standard deviation of the exact ones. So a bound means the same for any model.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.kernels.native import Kernels, load_kernels
from llama_herd.model.llama2 import Llama
from llama_herd.model.tiling import FIXED, FREE, Tiling
from llama_herd.model.weights.form import WeightForm
from llama_herd.ops.settings import BUNDLED_MODEL
from tests.closeness import assert_close
from tests.model.float64 import logits64
from tests.model.smollm2 import smollm2_file
from tests.tiny import stored_weights, write_tiny_gguf

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]  # kernels are compiled, or waited for

#: In float32, of logits up to 16; measured: 2e-5 on the bundled model, 5e-5 through 16 random layers.
TOLERANCE = 1e-4
LENGTHS = (320, 150, 77, 1)
SHORT_LENGTHS = (100, 40, 1)

#: Of every kind that a small model knows.
ENGLISH = """Once upon a time there was a small llama who lived on a hill with her mother. Every morning she
went down to the river to drink, and every evening she came back with stories of what she had seen on the way.
"What is the capital of France?" her mother asked one day. "The capital of France is Paris," she said, "and 17
+ 25 is 42."

def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)
"""


class Bound(NamedTuple):
    """What the errors of tokens may be: of half of them, and of 99 in 100."""

    half: float
    most: float


@dataclass(frozen=True)
class Subject:
    """Weights, texts, and the logits of every token of each text in float64."""

    path: Path
    texts: list[list[int]]
    exact: list[Tensor]

    @classmethod
    def of(cls, path: Path, texts: list[list[int]]) -> "Subject":
        with GGUFModel.open(path) as file:
            config = file.config
        weights = {name: weight.double() for name, weight in stored_weights(path).items()}
        return cls(path, texts, [logits64(weights, config, text) for text in texts])

    @classmethod
    def of_random_ids(cls, path: Path, lengths: tuple[int, ...] = LENGTHS) -> "Subject":
        with GGUFModel.open(path) as file:
            vocab_size = file.config.vocab_size
        rng = random.Random(path.stem)
        return cls.of(path, [rng.choices(range(3, vocab_size), k=length) for length in lengths])

    def logits(self, dtype: torch.dtype, form: WeightForm, tiling: Tiling = FREE) -> list[Tensor]:
        """Ours, in float64, of the model loaded so."""
        with GGUFModel.open(self.path) as file:
            llama = Llama.load(file, dtype=dtype, tiling=tiling, form=form)
        rng = random.Random(self.path.stem)
        return [logits.double() for logits in logits_by_sequence(llama, dtype, self.texts, rng)]

    def errors(self, dtype: torch.dtype, form: WeightForm) -> Tensor:
        """The error of each token of all texts."""
        ours, exact = torch.cat(self.logits(dtype, form)), torch.cat(self.exact)
        return (ours - exact).square().mean(dim=-1).sqrt() / exact.std(dim=-1)


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Subject]:
    """Subjects by their names, each made once."""
    folder = tmp_path_factory.mktemp("subjects")

    @cache
    def made(name: str) -> Subject:
        if name == "bundled":
            return Subject.of_random_ids(BUNDLED_MODEL)
        if name == "smollm2":
            return english(smollm2_file())
        path = folder / f"{name}.gguf"
        if name == "16 layers":
            write_tiny_gguf(path, num_layers=16, hidden_size=256, num_heads=8, ffn_size=320)
            return Subject.of_random_ids(path)
        write_tiny_gguf(path, type="Q4_0 Q8_0", num_layers=32, hidden_size=256, num_heads=8, ffn_size=256)
        return Subject.of_random_ids(path, SHORT_LENGTHS)

    return made


def english(path: Path) -> Subject:
    with GGUFModel.open(path) as file:
        ids = file.read_tokenizer().encode(ENGLISH)
    return Subject.of(path, [ids, ids[70:], ids[:1]])


@pytest.fixture(scope="module", params=["native", "dense"])
def form(request: pytest.FixtureRequest) -> WeightForm:
    """That of a default worker, whose blocks native kernels multiply, and of one without kernels."""
    if request.param == "dense":
        return WeightForm.DENSE
    kernels = load_kernels(request.getfixturevalue("kernels_folder"))
    if not isinstance(kernels, Kernels):
        pytest.skip(kernels.note)
    return WeightForm.FASTEST.with_kernels(kernels)


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
        logits = llama.forward(Batch.from_chunks(chunks, "cpu", llama.tiling.span_tokens), cache)
        for row, part in zip(ids, torch.split(logits, [len(some) for some in ids.values()]), strict=True):
            done[row].append(part)
            starts[row] += len(part)
    return [torch.cat(parts) for parts in done]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("tiling", [FREE, FIXED], ids=["ordinary", "deterministic"])
@pytest.mark.parametrize("name", ["bundled", "16 layers"])
def test_every_float32_logit_is_near_a_plain_forward_in_float64(
    subject: Callable[[str], Subject], name: str, tiling: Tiling
) -> None:
    held = subject(name)
    for ours, right in zip(held.logits(torch.float32, WeightForm.DENSE, tiling), held.exact, strict=True):
        assert_close(ours, right, atol=TOLERANCE, rtol=0)


#: About twice what was measured.
BOUNDS = {
    "bundled": Bound(0.025, 0.08),  # 0.011 and 0.036
    "32 layers": Bound(0.26, 0.5),  # 0.13 and 0.24: random weights swing more than trained ones
    "smollm2": Bound(0.07, 0.4),  # 0.033 and 0.19
}


@pytest.mark.parametrize(
    "name",
    [
        "bundled",
        "32 layers",
        pytest.param("smollm2", marks=pytest.mark.slow),
    ],
)
def test_a_default_worker_is_near_a_plain_forward_in_float64(
    subject: Callable[[str], Subject], form: WeightForm, name: str
) -> None:
    held, bound = subject(name), BOUNDS[name]
    assert held.errors(torch.float32, form).max() < TOLERANCE
    errors = held.errors(torch.bfloat16, form)
    assert errors.quantile(0.5) < bound.half
    assert errors.quantile(0.99) < bound.most
