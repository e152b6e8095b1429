"""The law of every family: equal to transformers, from a Hugging Face folder and from a GGUF file."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from llama_herd.errors import ModelFileError
from llama_herd.model.batch import Batch, Chunk
from llama_herd.model.cache import Cache
from llama_herd.model.files.open_model import open_model
from llama_herd.model.files.safetensors import WHOLE_NAME
from llama_herd.model.files.safetensors_model import CONFIG_NAME, EMBEDDING_NAME, HEAD_NAME
from llama_herd.model.llama2 import Llama
from llama_herd.model.pages import Pages
from llama_herd.model.tiling import FIXED, Tiling
from tests.closeness import assert_close
from tests.model.forwards import greedy, logits_after, random_ids, reserved
from tests.model.tiny_family import TINY_FAMILIES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FILES = [(name, kind) for name in TINY_FAMILIES for kind in ("folder", "gguf")]
#: Of the wide one, whose 46 layers take long, only the scale of its scores is its own: each logit shows it.
WIDE = "gemma2, wide"
TIED_KEY = "tie_word_embeddings"
#: Longer than any window, and than a page.
LENGTHS = (100, 70, 40, 9, 1)
#: Chunks of many lengths, of one token where a text begins, a window is full and a page ends.
MIXED = (1, 1, 7, 7, 6, *[1] * 4, *[7] * 5, *[1] * 4, 64, 1, 1)

pytestmark = pytest.mark.long


def quick(*kinds: str) -> pytest.MarkDecorator:
    """The cases of these kinds, of which only the slow tier has the wide one."""
    cases = [
        pytest.param((name, kind), marks=[pytest.mark.slow] * (name == WIDE), id=f"{name} {kind}")
        for name in TINY_FAMILIES
        for kind in kinds
    ]
    return pytest.mark.parametrize("case", cases)


@pytest.fixture(scope="module")
def oracles() -> dict[str, "PreTrainedModel"]:
    """transformers' models, made when they are asked for."""
    return {}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.fixture
def oracle(case: tuple[str, str], oracles: dict[str, "PreTrainedModel"]) -> "PreTrainedModel":
    name, _ = case
    if name not in oracles:
        oracles[name] = TINY_FAMILIES[name].model()
    return oracles[name]


@pytest.fixture
def path(case: tuple[str, str], oracle: "PreTrainedModel", files: Path) -> Path:
    name, kind = case
    path = files / name if kind == "folder" else files / f"{name}.gguf"
    if not path.exists():
        write = TINY_FAMILIES[name].write_folder if kind == "folder" else TINY_FAMILIES[name].write_gguf
        write(oracle, path)
    return path


@pytest.fixture(scope="module")
def llamas() -> dict[Path, Llama]:
    """Our models, loaded when they are asked for."""
    return {}


@pytest.fixture
def llama(path: Path, llamas: dict[Path, Llama]) -> Llama:
    if path not in llamas:
        llamas[path] = load(path)
    return llamas[path]


def load(path: Path, tiling: Tiling | None = None) -> Llama:
    with open_model(path) as file:
        return Llama.load(file, tiling=tiling) if tiling else Llama.load(file)


@torch.inference_mode()
def all_logits(oracle: "PreTrainedModel", ids: list[int]) -> Tensor:
    logits: Tensor = oracle(torch.tensor([ids])).logits[0]
    return logits


def assert_greedy_equal(
    llama: Llama, oracle: "PreTrainedModel", prompts: list[list[int]], num_tokens: int
) -> None:
    """Each token must be transformers' best after the prompt and the tokens before it."""
    for prompt, completion in zip(prompts, greedy(llama, prompts, num_tokens), strict=True):
        best = all_logits(oracle, prompt + completion).argmax(dim=-1).tolist()
        assert completion == best[len(prompt) - 1 : -1]


def logits_of_all(
    llama: Llama, ids: list[int], chunk_tokens: int | Sequence[int], *, consecutive: bool = True
) -> Tensor:
    """Logits (S, V) after each of `ids`, which come so many at a time, by turns if there are several."""
    cache = Cache(llama.config, num_pages=8)
    cache.pages = Pages(8, consecutive=consecutive)
    pages, logits = reserved(cache, "alone", len(ids)), []
    lengths = cycle([chunk_tokens] if isinstance(chunk_tokens, int) else chunk_tokens)
    start = 0
    while start < len(ids):
        some = ids[start : start + next(lengths)]
        batch = Batch.from_chunks(
            [Chunk(pages, start, some, len(some))], span_tokens=llama.tiling.span_tokens
        )
        logits.append(llama.forward(batch, cache))
        start += len(some)
    return torch.cat(logits)


@quick("folder", "gguf")
def test_greedy_ids_equal_transformers(llama: Llama, oracle: "PreTrainedModel") -> None:
    assert_greedy_equal(llama, oracle, [random_ids(length, length) for length in LENGTHS], num_tokens=16)


@pytest.mark.slow
@pytest.mark.parametrize("case", FILES, ids=" ".join)
def test_greedy_ids_equal_transformers_for_20_prompts_of_64_tokens(
    llama: Llama, oracle: "PreTrainedModel"
) -> None:
    assert_greedy_equal(llama, oracle, [random_ids(7 * seed + 1, seed) for seed in range(20)], num_tokens=64)


@pytest.mark.parametrize("case", FILES, ids=" ".join)
def test_every_logit_is_that_of_transformers(llama: Llama, oracle: "PreTrainedModel") -> None:
    ids = random_ids(150)
    expected = all_logits(oracle, ids)
    assert_close(logits_of_all(llama, ids, 150), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("cap", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_a_cap_that_a_folder_has_as_null_is_none(cap: str, tmp_path: Path) -> None:
    family = TINY_FAMILIES["gemma2"]
    oracle = replace(family, config={**family.config, cap: None}).model()
    llama, ids = load(family.write_folder(oracle, tmp_path)), random_ids(70)
    assert json.loads((tmp_path / CONFIG_NAME).read_text())[cap] is None
    assert_close(logits_of_all(llama, ids, 70), all_logits(oracle, ids), atol=1e-4, rtol=0)


@pytest.mark.parametrize("part", ["attention", "mlp"])
def test_biases_that_a_gguf_file_has_count(part: str, tmp_path: Path) -> None:
    family = replace(TINY_FAMILIES["llama3.1"], extra=None, config={f"{part}_bias": True})
    oracle, ids = family.model(), random_ids(70)
    llama = load(family.write_gguf(oracle, tmp_path / "biased.gguf"))
    assert_close(logits_of_all(llama, ids, 70), all_logits(oracle, ids), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        *((name, f"{part}_bias") for name in ("llama3.1", "granite") for part in ("attention", "mlp")),
        *((name, "attention_bias") for name in ("qwen3", "gemma2", "gemma3")),
    ],
)
def test_biases_that_a_folder_states_count(name: str, key: str, tmp_path: Path) -> None:
    family = TINY_FAMILIES[name]
    family = replace(family, config={**family.config, key: True})
    oracle, ids = family.model(), random_ids(70)
    llama = load(family.write_folder(oracle, tmp_path))
    assert_close(logits_of_all(llama, ids, 70), all_logits(oracle, ids), atol=1e-4, rtol=0)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("head", ["own", "copy", "none"])
@pytest.mark.parametrize("flag", [True, False, None])
@pytest.mark.parametrize("name", [name for name in TINY_FAMILIES if name != WIDE])
def test_the_head_is_the_one_of_transformers(name: str, flag: bool | None, head: str, tmp_path: Path) -> None:
    """Whatever the flag says, and whether or not a head is stored."""
    from transformers import AutoModelForCausalLM

    family = TINY_FAMILIES[name]
    folder = family.write_folder(family.model(), tmp_path)
    config = json.loads((folder / CONFIG_NAME).read_text())
    stated = {} if flag is None else {TIED_KEY: flag}
    kept = {key: value for key, value in config.items() if key != TIED_KEY}
    (folder / CONFIG_NAME).write_text(json.dumps({**kept, **stated}))
    weights = load_file(folder / WHOLE_NAME)
    embedding = weights[EMBEDDING_NAME]
    weights.pop(HEAD_NAME, None)
    heads = {"own": torch.randn(embedding.shape), "copy": embedding.clone()}
    stored = {HEAD_NAME: heads[head]} if head in heads else {}
    save_file({**weights, **stored}, folder / WHOLE_NAME, metadata={"format": "pt"})
    if not stored and flag is False:  # transformers makes one up at random
        with pytest.raises(ModelFileError, match=rf"tensor {HEAD_NAME} is missing"):
            load(folder)
        return
    oracle, ids = AutoModelForCausalLM.from_pretrained(folder).eval(), random_ids(20)
    if not stored:
        oracle.lm_head.weight = oracle.get_input_embeddings().weight  # also where it takes no flag for false
    assert_close(logits_of_all(load(folder), ids, 20), all_logits(oracle, ids), atol=1e-4, rtol=0)


@pytest.mark.parametrize("consecutive", [True, False])
@pytest.mark.parametrize(
    ("chunk_tokens", "num_tokens"),
    [
        pytest.param(MIXED, 150, id="mixed"),
        *(pytest.param(*cut, marks=pytest.mark.slow) for cut in ((1, 70), (7, 150), (64, 150))),
    ],
)
@quick("gguf")
def test_cached_tokens_count_as_in_a_full_forward(
    llama: Llama, chunk_tokens: int | Sequence[int], num_tokens: int, consecutive: bool
) -> None:
    ids = random_ids(num_tokens)
    cut = logits_of_all(llama, ids, chunk_tokens, consecutive=consecutive)
    assert_close(cut, logits_of_all(llama, ids, num_tokens), atol=2e-5, rtol=0)


@pytest.mark.parametrize("consecutive", [True, False])
@quick("gguf")
def test_a_ragged_batch_equals_each_sequence_alone(llama: Llama, consecutive: bool) -> None:
    """Half are prefilled in the batch, half only decode in it."""
    cache = Cache(llama.config, num_pages=32)
    cache.pages = Pages(32, consecutive=consecutive)
    cache.storage.fill_(torch.nan)
    texts = [random_ids(num_tokens, num_tokens) for num_tokens in (1, 5, 31, 64, 65, 130)]
    chunks = []
    for row, ids in enumerate(texts):
        pages, num_cached = reserved(cache, str(row), len(ids)), len(ids) - 1 if row % 2 else 0
        if num_cached:
            llama.forward(Batch.from_chunks([Chunk(pages, 0, ids[:num_cached], 0)]), cache)
        chunks.append(Chunk(pages, num_cached, ids[num_cached:], 1))
    together = llama.forward(Batch.from_chunks(chunks), cache)
    alone = torch.stack([logits_after(llama, ids) for ids in texts])
    assert_close(together, alone, atol=2e-5, rtol=0)


@pytest.mark.parametrize(
    "chunk_tokens",
    [pytest.param(MIXED, id="mixed"), *(pytest.param(length, marks=pytest.mark.slow) for length in (1, 7))],
)
@quick("gguf")
def test_deterministic_logits_are_bit_equal_however_tokens_come(
    path: Path, chunk_tokens: int | Sequence[int]
) -> None:
    llama, ids = load(path, FIXED), random_ids(70)
    assert logits_of_all(llama, ids, chunk_tokens).equal(logits_of_all(llama, ids, 70))
