"""The law of vectors: those of transformers, alone, in any batch, cut anywhere, and behind what is cached."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from torch.nn.functional import linear, normalize

from llama_herd.errors import BadInput, ModelFileError
from llama_herd.model.cache import Cache
from llama_herd.model.embedder import Embedder
from llama_herd.model.files.open_model import open_model
from llama_herd.model.files.safetensors_model import CONFIG_NAME, HEAD_NAME
from llama_herd.model.llama2 import Llama
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.shape.pooling import Override, Pooling
from llama_herd.model.shape.purpose import Embeds
from llama_herd.model.tiling import FIXED, FREE, Tiling
from tests.closeness import assert_close
from tests.model.forwards import random_ids
from tests.model.modules_folder import (
    LAST,
    MEAN,
    NORMALIZE,
    TANH,
    dense_row,
    dense_weights,
    write_modules,
)
from tests.model.tiny_family import TINY_FAMILIES, TinyFamily
from tests.model.tiny_folder import tiny_engine, write_tiny_tokenizer
from tests.tiny import BOS_ID, EOS_ID

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: The wide Gemma 2 has no difference that a vector would show, and takes long.
NAMES = [name for name in TINY_FAMILIES if name != "gemma2, wide"]
TYPES = {
    Pooling.LAST: gguf.PoolingType.LAST,
    Pooling.MEAN: gguf.PoolingType.MEAN,
    Pooling.CLS: gguf.PoolingType.CLS,
}
#: Longer than any window, than a page and than two.
LENGTHS = (1, 5, 31, 64, 65, 130)
TEXTS = [random_ids(length, length) for length in LENGTHS]
#: Measured: at most 1.3e-6, of numbers of vectors of length 1.
CLOSE = 5e-6


@pytest.fixture(scope="module")
def oracles() -> dict[str, "PreTrainedModel"]:
    """transformers' models, made when they are asked for."""
    return {}


@pytest.fixture
def oracle(name: str, oracles: dict[str, "PreTrainedModel"]) -> "PreTrainedModel":
    if name not in oracles:
        oracles[name] = TINY_FAMILIES[name].model()
    return oracles[name]


def write_gguf(family: TinyFamily, model: "PreTrainedModel", path: Path, pooling: Pooling) -> Path:
    """The model as llama.cpp converts an embedder."""

    def extra(writer: gguf.GGUFWriter) -> None:
        if family.extra is not None:
            family.extra(writer)
        writer.add_pooling_type(TYPES[pooling])

    return replace(family, extra=extra).write_gguf(model, path)


def write_folder(model: "PreTrainedModel", folder: Path) -> Path:
    """The model as sentence-transformers saves it: without its head, by shorter names."""
    model.save_pretrained(folder)
    write_tiny_tokenizer(folder)
    weights = load_file(folder / "model.safetensors")
    weights.pop(HEAD_NAME, None)
    shorter = {name.removeprefix("model."): weight for name, weight in weights.items()}
    save_file(shorter, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def load(
    path: Path,
    *,
    pooling: Override = "auto",
    num_pages: int = 64,
    tiling: Tiling = FREE,
    consecutive: bool = True,
) -> Embedder:
    with open_model(path, pooling) as file:
        llama = Llama.load(file, tiling=tiling)
        cache = Cache(llama.config, num_pages, consecutive=consecutive)
        return Embedder.load(file, llama, cache)


@torch.inference_mode()
def pooled(oracle: "PreTrainedModel", texts: Sequence[list[int]], pooling: Pooling) -> Tensor:
    """What transformers' states of each text alone come to, in plain words."""
    states = [oracle.model(torch.tensor([ids])).last_hidden_state[0] for ids in texts]
    of = {
        Pooling.LAST: [rows[-1] for rows in states],
        Pooling.MEAN: [rows.mean(dim=0) for rows in states],
        Pooling.CLS: [rows[0] for rows in states],
    }
    return torch.stack(of[pooling])


@pytest.mark.parametrize("pooling", list(Pooling))
@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_those_of_transformers(
    name: str, oracle: "PreTrainedModel", pooling: Pooling, tmp_path: Path
) -> None:
    """From a GGUF file: together, each alone, in chunks, and behind pages that are cached."""
    embedder = load(write_gguf(TINY_FAMILIES[name], oracle, tmp_path / "tiny.gguf", pooling))
    expected = normalize(pooled(oracle, TEXTS, pooling), dim=-1)
    assert_close(embedder.vectors(TEXTS), expected, atol=CLOSE, rtol=0)
    alone = torch.cat([embedder.vectors([ids]) for ids in TEXTS])
    assert_close(alone, expected, atol=CLOSE, rtol=0)
    for step_tokens in (1, 50):
        assert_close(embedder.vectors(TEXTS, step_tokens=step_tokens), expected, atol=CLOSE, rtol=0)
    embedder.cache.prefixes.check()
    assert not embedder.cache.pages.held


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_without_a_head_gives_the_same_vectors(
    name: str, oracle: "PreTrainedModel", tmp_path: Path
) -> None:
    folder = write_modules(write_folder(oracle, tmp_path / "folder"), MEAN)
    embedder = load(folder)
    assert embedder.llama.output is None
    assert_close(embedder.vectors(TEXTS), pooled(oracle, TEXTS, Pooling.MEAN), atol=2e-5, rtol=0)


@pytest.fixture(scope="module")
def qwen3() -> "PreTrainedModel":
    return TINY_FAMILIES["qwen3"].model()


@pytest.fixture(scope="module")
def saved(qwen3: "PreTrainedModel", tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(qwen3, tmp_path_factory.mktemp("qwen3"))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A folder of Qwen 3 that becomes an embedder by the modules that a test writes."""
    return shutil.copytree(saved, tmp_path / "qwen3")


def test_dense_layers_come_behind_the_pooling_and_before_the_norm(
    folder: Path, qwen3: "PreTrainedModel"
) -> None:
    rows = [dense_row(64, 96), dense_row(96, 32, TANH, bias=True)]
    vectors = load(write_modules(folder, LAST, *rows, NORMALIZE)).vectors(TEXTS)
    first, second = (dense_weights(config) for _, config in rows)
    wide = linear(pooled(qwen3, TEXTS, Pooling.LAST), first["linear.weight"])
    expected = linear(wide, second["linear.weight"], second["linear.bias"]).tanh()
    assert_close(vectors, normalize(expected, dim=-1), atol=CLOSE, rtol=0)


def test_a_dense_layer_of_another_shape_is_refused(folder: Path) -> None:
    write_modules(folder, LAST, dense_row(64, 96))
    save_file({"linear.weight": torch.zeros(95, 64)}, folder / "2_Dense" / "model.safetensors")
    with pytest.raises(
        ModelFileError, match=r"2_Dense/model.safetensors: holds .*\(95, 64\).*expected .*\(96, 64"
    ):
        load(folder)


@pytest.mark.parametrize("rows", [(LAST,), (LAST, NORMALIZE)])
def test_dimensions_are_cut_and_then_normalised(
    rows: tuple[object, ...], folder: Path, qwen3: "PreTrainedModel"
) -> None:
    embedder = load(write_modules(folder, *rows))  # type: ignore[arg-type]
    cut = pooled(qwen3, TEXTS, Pooling.LAST)[:, :24]
    expected = normalize(cut, dim=-1) if NORMALIZE in rows else cut
    assert_close(embedder.vectors(TEXTS, dimensions=24), expected, atol=2e-5, rtol=0)
    for wrong in (0, 65):
        with pytest.raises(BadInput, match=f"dimensions is {wrong}, allowed are 1 to 64"):
            embedder.vectors(TEXTS, dimensions=wrong)


@pytest.mark.parametrize("pooling", [Pooling.LAST, Pooling.MEAN])
def test_the_end_that_a_tokenizer_puts_behind_a_text_counts(
    pooling: Pooling, folder: Path, qwen3: "PreTrainedModel"
) -> None:
    """As Qwen3-Embedding's: no flag names it, the post_processor alone does."""
    engine = tiny_engine()
    around = [("<s>", BOS_ID), ("</s>", EOS_ID)]
    engine.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=around)
    engine.save(str(folder / "tokenizer.json"))
    ids = engine.encode("Once upon a time").ids
    assert (ids[0], ids[-1]) == (BOS_ID, EOS_ID)
    embedder = load(write_modules(folder, LAST if pooling is Pooling.LAST else MEAN))
    vector = embedder.vectors(["Once upon a time"])
    assert_close(vector, pooled(qwen3, [ids], pooling), atol=2e-5, rtol=0)


def test_an_end_that_only_a_flag_asks_for_is_put_behind_a_text_too(
    folder: Path, qwen3: "PreTrainedModel"
) -> None:
    """As e5-mistral's, which is from before transformers 5."""
    write_tiny_tokenizer(folder, eos_token="</s>", add_eos_token=True)
    with open_model(write_modules(folder, LAST)) as file:
        (told,) = file.read_tokenizer().complaints
    assert "puts none behind a text: as this model embeds, one is put, which its vectors were made" in told
    ids = [*tiny_engine().encode("Once").ids, EOS_ID]
    assert_close(load(folder).vectors(["Once"]), pooled(qwen3, [ids], Pooling.LAST), atol=2e-5, rtol=0)


PROMPT = "Instruct: find what answers this, however long you look for it, and leave out all else. " * 2
PROMPTS = {"prompts": {"query": PROMPT, "none": ""}, "default_prompt_name": "none"}


@pytest.mark.parametrize("consecutive", [True, False])
@pytest.mark.parametrize("pools_prompt", [True, False])
@pytest.mark.parametrize("mode", ["lasttoken", "mean", "cls"])
def test_a_prompt_comes_before_a_text_and_is_computed_once(
    mode: str, pools_prompt: bool, consecutive: bool, folder: Path, qwen3: "PreTrainedModel"
) -> None:
    pooling = ("Pooling", {"pooling_mode": mode, "include_prompt": pools_prompt})
    embedder = load(write_modules(folder, pooling, prompts=PROMPTS), consecutive=consecutive)
    engine = tiny_engine()
    texts = ["Once upon a time", "there was a llama", "Once"]
    states = []
    num_prompt = len(engine.encode(PROMPT).ids)
    for text in texts:
        with torch.inference_mode():
            ids = torch.tensor([engine.encode(PROMPT + text).ids])
            states.append(qwen3.model(ids).last_hidden_state[0][0 if pools_prompt else num_prompt :])
    of = {
        "lasttoken": lambda rows: rows[-1],
        "mean": lambda rows: rows.mean(dim=0),
        "cls": lambda rows: rows[0],
    }
    expected = torch.stack([of[mode](rows) for rows in states])
    for _ in range(2):  # the second time behind pages of the first
        assert_close(embedder.vectors(texts, prompt="query"), expected, atol=2e-5, rtol=0)
    shares = not (mode != "lasttoken" and pools_prompt)
    num_pages = (num_prompt - 1) // PAGE_TOKENS
    assert num_pages > 0
    found = embedder.cache.prefixes.num_found_tokens
    assert found == (PAGE_TOKENS * num_pages * (2 * len(texts) - 1) if shares else 0)
    embedder.cache.prefixes.check()


def test_texts_themselves_are_never_kept(folder: Path) -> None:
    embedder = load(write_modules(folder, LAST, prompts=PROMPTS))
    embedder.vectors([*TEXTS, "Once upon a time " * 30])
    assert embedder.cache.pages.num_free == embedder.cache.pages.num_pages
    embedder.vectors(["Once"], prompt="query")
    used = embedder.cache.pages.num_pages - embedder.cache.pages.num_free
    assert used == (len(tiny_engine().encode(PROMPT).ids) - 1) // PAGE_TOKENS


def test_more_texts_than_the_cache_holds_take_turns(folder: Path) -> None:
    write_modules(folder, LAST)
    wide, narrow = load(folder), load(folder, num_pages=3)
    assert_close(narrow.vectors(TEXTS * 3), wide.vectors(TEXTS * 3), atol=2e-5, rtol=0)
    assert narrow.cache.pages.num_free == 3


def test_what_cannot_be_embedded_is_refused_by_its_place(folder: Path) -> None:
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 100}))
    embedder = load(write_modules(folder, LAST, prompts=PROMPTS))
    with pytest.raises(BadInput, match=r"texts\[5\] has 130 tokens, the limit here is 100. Cut it"):
        embedder.vectors(TEXTS)
    with pytest.raises(BadInput, match=r"texts\[1\] has no token of its own"):
        embedder.vectors([[5], []])
    with pytest.raises(BadInput, match=r"texts\[0\] has the id 100277, allowed are 0 to"):
        embedder.vectors([[100_277]])
    with pytest.raises(BadInput, match="prompt is 'queries', this model has 'query', 'none'"):
        embedder.vectors(["Once"], prompt="queries")


def test_an_empty_text_has_the_vector_of_what_stands_around_it(
    folder: Path, qwen3: "PreTrainedModel"
) -> None:
    vector = load(write_modules(folder, LAST)).vectors([""])
    assert_close(vector, pooled(qwen3, [tiny_engine().encode("").ids], Pooling.LAST), atol=2e-5, rtol=0)


def test_a_model_that_generates_has_no_vectors_unless_a_pooling_is_set(
    qwen3: "PreTrainedModel", tmp_path: Path
) -> None:
    path = TINY_FAMILIES["qwen3"].write_gguf(qwen3, tmp_path / "tiny.gguf")
    with pytest.raises(
        ModelFileError, match=r"tiny.gguf: generates text, its files name no pooling. .* HERD_POOL"
    ):
        load(path)
    embedder = load(path, pooling="mean")
    assert embedder.purpose == Embeds(Pooling.MEAN)
    assert_close(
        embedder.vectors(TEXTS), normalize(pooled(qwen3, TEXTS, Pooling.MEAN), dim=-1), atol=CLOSE, rtol=0
    )


def test_deterministic_vectors_are_bit_equal_however_texts_come(folder: Path) -> None:
    embedder = load(write_modules(folder, MEAN), tiling=FIXED)
    whole = embedder.vectors(TEXTS)
    assert embedder.vectors(TEXTS, step_tokens=50).equal(whole)
    assert torch.cat([embedder.vectors([ids]) for ids in TEXTS]).equal(whole)


def test_vectors_in_bfloat16_are_near_those_in_float32(folder: Path) -> None:
    write_modules(folder, MEAN, NORMALIZE)
    exact = load(folder).vectors(TEXTS)
    with open_model(folder) as file:
        llama = Llama.load(file, dtype=torch.bfloat16)
        embedder = Embedder.load(file, llama, Cache(llama.config, 64, dtype=torch.bfloat16))
    vectors = embedder.vectors(TEXTS)
    assert vectors.dtype is torch.float32
    assert (vectors * exact).sum(dim=-1).min() > 0.999


def test_a_folder_of_a_bidirectional_model_is_never_run_as_a_causal_one(folder: Path) -> None:
    config = json.loads((folder / CONFIG_NAME).read_text())
    (folder / CONFIG_NAME).write_text(json.dumps({**config, "is_causal": False}))
    with pytest.raises(ModelFileError, match=r"config.json: is_causal is false: its tokens see those after"):
        open_model(write_modules(folder, LAST))


def test_no_texts_have_no_vectors(folder: Path) -> None:
    assert load(write_modules(folder, MEAN)).vectors([]).shape == (0, 64)
