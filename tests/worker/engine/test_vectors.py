"""The law of vectors: those of transformers, alone, in any batch, cut anywhere, and behind what is cached."""

import json
import shutil
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from torch.nn.functional import linear, normalize

from llama_herd.errors import InvalidJob, ModelFileError
from llama_herd.model.files.open_model import open_model
from llama_herd.model.files.safetensors_model import CONFIG_NAME
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.shape.pooling import Override, Pooling
from llama_herd.model.shape.purpose import Embeds
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.result import floats_of
from llama_herd.worker.engine.interface import NewVector
from tests.closeness import assert_close
from tests.model.modules_folder import (
    LAST,
    MEAN,
    NORMALIZE,
    TANH,
    ModuleRow,
    dense_row,
    dense_weights,
    write_modules,
)
from tests.model.tiny_embedder import CLOSE, NAMES, PROMPT, PROMPTS, TEXTS, pooled, write_folder, write_gguf
from tests.model.tiny_family import TINY_FAMILIES
from tests.model.tiny_folder import tiny_engine, tiny_tokenizer, write_tiny_tokenizer
from tests.tiny import BOS_ID, EOS_ID, WIDE, write_tiny_gguf
from tests.worker.text_engine import TextEngine

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Of vectors that are not normalised.
CLOSE_STATES = 2e-5
ONCE = "Once upon a time"


@pytest.fixture(scope="module")
def oracles() -> dict[str, "PreTrainedModel"]:
    """transformers' models, made when they are asked for."""
    return {}


@pytest.fixture
def oracle(name: str, oracles: dict[str, "PreTrainedModel"]) -> "PreTrainedModel":
    if name not in oracles:
        oracles[name] = TINY_FAMILIES[name].model()
    return oracles[name]


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


# Equal to transformers


@pytest.mark.parametrize("pooling", list(Pooling))
@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_those_of_transformers(
    name: str, oracle: "PreTrainedModel", pooling: Pooling, tmp_path: Path
) -> None:
    """From a GGUF file: together, each alone, and in steps of a few tokens, down to one."""
    engine = TextEngine(write_gguf(TINY_FAMILIES[name], oracle, tmp_path / "tiny.gguf", pooling))
    expected = normalize(pooled(oracle, TEXTS, pooling), dim=-1)
    assert_close(engine.vectors_of_ids(TEXTS), expected, atol=CLOSE, rtol=0)
    alone = torch.cat([engine.vectors_of_ids([ids]) for ids in TEXTS])
    assert_close(alone, expected, atol=CLOSE, rtol=0)
    for engine.step_tokens in (1, 50):
        assert_close(engine.vectors_of_ids(TEXTS), expected, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_without_a_head_gives_the_same_vectors(
    name: str, oracle: "PreTrainedModel", tmp_path: Path
) -> None:
    engine = TextEngine(write_modules(write_folder(oracle, tmp_path / "folder"), MEAN))
    assert engine.model.llama.output is None
    expected = pooled(oracle, TEXTS, Pooling.MEAN)
    assert_close(engine.vectors_of_ids(TEXTS), expected, atol=CLOSE_STATES, rtol=0)


def test_dense_layers_come_behind_the_pooling_and_before_the_norm(
    folder: Path, qwen3: "PreTrainedModel"
) -> None:
    rows = [dense_row(64, 96), dense_row(96, 32, TANH, bias=True)]
    vectors = TextEngine(write_modules(folder, LAST, *rows, NORMALIZE)).vectors_of_ids(TEXTS)
    first, second = (dense_weights(config) for _, config in rows)
    wide = linear(pooled(qwen3, TEXTS, Pooling.LAST), first["linear.weight"])
    expected = linear(wide, second["linear.weight"], second["linear.bias"]).tanh()
    assert_close(vectors, normalize(expected, dim=-1), atol=CLOSE, rtol=0)


@pytest.mark.parametrize("rows", [(LAST,), (LAST, NORMALIZE)])
def test_dimensions_are_cut_and_then_normalised(
    rows: tuple[ModuleRow, ...], folder: Path, qwen3: "PreTrainedModel"
) -> None:
    vectors = TextEngine(write_modules(folder, *rows)).vectors_of_ids(TEXTS, dimensions=24)
    cut = pooled(qwen3, TEXTS, Pooling.LAST)[:, :24]
    expected = normalize(cut, dim=-1) if NORMALIZE in rows else cut
    assert_close(vectors, expected, atol=CLOSE_STATES, rtol=0)


@pytest.mark.parametrize("pooling", [Pooling.LAST, Pooling.MEAN])
def test_the_end_that_a_tokenizer_puts_behind_a_text_counts(
    pooling: Pooling, folder: Path, qwen3: "PreTrainedModel"
) -> None:
    """As Qwen3-Embedding's: no flag names it, the post_processor alone does."""
    tokenizer = tiny_engine()
    around = [("<s>", BOS_ID), ("</s>", EOS_ID)]
    tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=around)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(ONCE).ids
    assert (ids[0], ids[-1]) == (BOS_ID, EOS_ID)
    engine = TextEngine(write_modules(folder, LAST if pooling is Pooling.LAST else MEAN))
    assert_close(engine.vectors([ONCE]), pooled(qwen3, [ids], pooling), atol=CLOSE_STATES, rtol=0)


def test_an_end_that_only_a_flag_asks_for_is_put_behind_a_text_too(
    folder: Path, qwen3: "PreTrainedModel"
) -> None:
    """As e5-mistral's, which is from before transformers 5."""
    write_tiny_tokenizer(folder, eos_token="</s>", add_eos_token=True)
    engine = TextEngine(write_modules(folder, LAST))
    (told,) = engine.model.tokenizer.complaints
    assert "puts none behind a text: as this model embeds, one is put, which its vectors were made" in told
    ids = [*tiny_engine().encode("Once").ids, EOS_ID]
    expected = pooled(qwen3, [ids], Pooling.LAST)
    assert_close(engine.vectors(["Once"]), expected, atol=CLOSE_STATES, rtol=0)


@pytest.mark.parametrize("pools_prompt", [True, False])
@pytest.mark.parametrize("mode", ["lasttoken", "mean", "cls"])
def test_vectors_are_those_of_sentence_transformers(mode: str, pools_prompt: bool, tmp_path: Path) -> None:
    """A word of a text may be one token with the end of the prompt: it is left out of the mean with that."""
    peer = pytest.importorskip("sentence_transformers", reason="no sentence-transformers")
    folder = write_folder(TINY_FAMILIES["granite"].model(), tmp_path / "granite")
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = "<unk>"
    tokenizer.save_pretrained(folder)
    pooling = ("Pooling", {"embedding_dimension": 64, "pooling_mode": mode, "include_prompt": pools_prompt})
    write_modules(folder, pooling, dense_row(64, 32, TANH, bias=True), NORMALIZE, prompts=PROMPTS)
    texts, engine = [ONCE, "there was a llama", "Once"], TextEngine(folder)
    model = peer.SentenceTransformer(str(folder), device="cpu")
    for name in ("query", None):
        expected = torch.tensor(model.encode(texts, prompt_name=name))
        assert_close(engine.vectors(texts, prompt_name=name), expected, atol=CLOSE, rtol=0)


def test_vectors_in_bfloat16_are_near_those_in_float32(folder: Path) -> None:
    write_modules(folder, MEAN, NORMALIZE)
    exact, rounded = (
        TextEngine(folder, dtype=dtype).vectors_of_ids(TEXTS) for dtype in ("float32", "bfloat16")
    )
    assert (rounded * exact).sum(dim=-1).min() > 0.999


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("types", ["Q8_0", "Q4_0", "Q4_K Q6_K"])
def test_vectors_of_blocks_are_those_of_their_numbers(
    kernels_folder: Path, tmp_path: Path, types: str, pooling: Override
) -> None:
    """In float32; in bfloat16 as far from that as it is itself."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", type=types, **WIDE)

    def vectors(weights: str, dtype: str) -> torch.Tensor:
        settings: dict[str, Any] = {"weights": weights, "dtype": dtype, "kernels_dir": str(kernels_folder)}
        engine = TextEngine(path, pooling=pooling, **settings)
        assert engine.model.llama.is_native is (weights == "quantized")
        return engine.vectors_of_ids(TEXTS)

    exact = vectors("dense", "float32")
    assert_close(vectors("quantized", "float32"), exact, atol=CLOSE, rtol=0)
    away = [(vectors(weights, "bfloat16") - exact).square().mean() for weights in ("quantized", "dense")]
    assert away[0] <= 6**2 * away[1]


# However they come


@pytest.mark.parametrize("module", [LAST, MEAN])
def test_deterministic_vectors_are_bit_equal_however_texts_come(module: ModuleRow, folder: Path) -> None:
    engine = TextEngine(write_modules(folder, module), deterministic=True)
    whole = engine.vectors_of_ids(TEXTS)
    for engine.step_tokens in (7, 50):
        assert engine.vectors_of_ids(TEXTS).equal(whole)
    assert torch.cat([engine.vectors_of_ids([ids]) for ids in TEXTS]).equal(whole)


def test_more_texts_than_the_cache_holds_take_turns(folder: Path) -> None:
    write_modules(folder, LAST)
    narrow = TextEngine(folder, kv_cache_tokens=3 * PAGE_TOKENS)
    expected = TextEngine(folder).vectors_of_ids(TEXTS * 3)
    assert_close(narrow.vectors_of_ids(TEXTS * 3), expected, atol=CLOSE_STATES, rtol=0)
    assert not narrow.num_kept


@pytest.mark.parametrize("consecutive", [True, False])
@pytest.mark.parametrize("pools_prompt", [True, False])
@pytest.mark.parametrize("mode", list(Pooling))
def test_a_prompt_comes_before_a_text_and_is_computed_once_where_that_may_be(
    mode: Pooling, pools_prompt: bool, consecutive: bool, folder: Path, qwen3: "PreTrainedModel"
) -> None:
    name = "lasttoken" if mode is Pooling.LAST else mode.value
    pooling = ("Pooling", {"pooling_mode": name, "include_prompt": pools_prompt})
    engine = TextEngine(write_modules(folder, pooling, prompts=PROMPTS), consecutive=consecutive)
    texts = [ONCE, "there was a llama", "Once"]
    num_prompt = len(tiny_engine().encode(PROMPT).ids)
    ids = [tiny_engine().encode(PROMPT + text).ids for text in texts]
    expected = pooled(qwen3, ids, mode, 0 if pools_prompt else num_prompt)
    for _ in range(2):  # the second time behind pages of the first
        vectors = engine.vectors(texts, prompt_name="query")
        assert_close(vectors, expected, atol=CLOSE_STATES, rtol=0)
    shares = mode is Pooling.LAST or not pools_prompt
    num_pages = (num_prompt - 1) // PAGE_TOKENS
    assert num_pages > 0
    assert engine.num_kept == num_pages * shares
    assert engine.prefixes.num_found_tokens == PAGE_TOKENS * engine.num_kept * (2 * len(texts) - 1)


def test_texts_themselves_are_never_kept(folder: Path) -> None:
    engine = TextEngine(write_modules(folder, LAST, prompts=PROMPTS))
    engine.vectors([*(PROMPT + text for text in ("a", "b")), "Once upon a time " * 30])
    engine.vectors_of_ids(TEXTS)
    assert not engine.num_kept


def test_a_vector_with_nan_ends_its_job_and_no_other(folder: Path) -> None:
    engine = TextEngine(write_modules(folder, LAST))
    engine.model.llama.norm.weight[0] = float("nan")
    engine.run(*engine.sequences(EmbeddingJob(text_ids=((5, 6),))))
    assert engine.outputs.errors == ["numeric_error"]
    assert not any(isinstance(one, NewVector) for one in engine.outputs)


def test_floats_are_what_the_engine_has_found(folder: Path) -> None:
    engine = TextEngine(write_modules(folder, LAST))
    vectors = engine.vectors(["Once"])
    (raw,) = [one.vector for one in engine.outputs if isinstance(one, NewVector)]
    assert torch.tensor(floats_of(b64encode(raw).decode())).equal(vectors[0])


# Refused


def test_a_model_that_generates_has_no_vectors_unless_a_pooling_is_set(
    qwen3: "PreTrainedModel", tmp_path: Path
) -> None:
    path = TINY_FAMILIES["qwen3"].write_gguf(qwen3, tmp_path / "tiny.gguf")
    with pytest.raises(InvalidJob, match="generates text, and makes no vectors"):
        TextEngine(path).vectors(["x"])
    engine = TextEngine(path, pooling="mean")
    assert engine.model.maker.texts.purpose == Embeds(Pooling.MEAN)
    expected = normalize(pooled(qwen3, TEXTS, Pooling.MEAN), dim=-1)
    assert_close(engine.vectors_of_ids(TEXTS), expected, atol=CLOSE, rtol=0)


def test_a_dense_layer_of_another_shape_is_refused(folder: Path) -> None:
    write_modules(folder, LAST, dense_row(64, 96))
    save_file({"linear.weight": torch.zeros(95, 64)}, folder / "2_Dense" / "model.safetensors")
    with pytest.raises(
        ModelFileError, match=r"2_Dense/model.safetensors: holds .*\(95, 64\).*expected .*\(96, 64"
    ):
        TextEngine(folder)


def test_a_folder_of_a_bidirectional_model_is_never_run_as_a_causal_one(folder: Path) -> None:
    config = json.loads((folder / CONFIG_NAME).read_text())
    (folder / CONFIG_NAME).write_text(json.dumps({**config, "is_causal": False}))
    with pytest.raises(ModelFileError, match=r"config.json: is_causal is false: its tokens see those after"):
        open_model(write_modules(folder, LAST))
