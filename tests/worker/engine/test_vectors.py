"""Texts in the engine: their vectors are those of the model alone, whoever is computed beside them."""

from base64 import b64encode
from collections.abc import Sequence as Rows
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from llama_herd.errors import GenerationError, InvalidJob
from llama_herd.model.cache import Cache
from llama_herd.model.files.open_model import open_model
from llama_herd.model.llama2 import Llama
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.shape.pooling import Pooling
from llama_herd.model.shape.purpose import Embeds, Purpose
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.tiling import FIXED, FREE, Tiling
from llama_herd.model.vector_head import VectorHead
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.result import floats_of
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.worker.engine.detokenizer import Detokenizer
from llama_herd.worker.engine.engine import Engine
from llama_herd.worker.engine.interface import StepOutput
from llama_herd.worker.engine.model_runner import ModelRunner
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.sequence import Sequence
from llama_herd.worker.loading.text_sequences import TextMaker
from tests.closeness import assert_close
from tests.model.modules_folder import LAST, MEAN, write_modules
from tests.model.test_embedder import CLOSE, NAMES, PROMPT, PROMPTS, TEXTS, pooled, write_folder, write_gguf
from tests.model.tiny_family import TINY_FAMILIES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NUM_PAGES = 24


class TextEngine:
    """An engine with a model that embeds, and what its steps have brought."""

    def __init__(self, path: Path, tokens_a_step: int = 16, max_rows: int = 4, tiling: Tiling = FREE) -> None:
        with open_model(path) as file:
            purpose = file.purpose
            assert isinstance(purpose, Embeds)
            self.llama = Llama.load(file, tiling=tiling)
            self.cache = Cache(self.llama.config, NUM_PAGES)
            self.head = VectorHead.load(purpose, self.cache.device)
            self.maker = self._maker(file.read_tokenizer(), purpose)
        self.outputs: list[StepOutput] = []
        self.engine = Engine(
            ModelRunner(self.llama, self.cache, head=self.head),
            self.cache.prefixes,
            max_rows=max_rows,
            prefill=PrefillBudget(tokens_a_step),
            sink=self.outputs.extend,
        )

    def _maker(self, tokenizer: Tokenizer, purpose: Purpose) -> TextMaker:
        width = self.llama.config.hidden_size
        return TextMaker(tokenizer, purpose, width, self.cache.max_length, NUM_PAGES, generates=False)

    def sequences(self, **fields: Any) -> list[Sequence]:
        return self.maker.sequences("texts", EmbeddingJob(**fields), None)

    def run(self, *sequences: Sequence) -> None:
        self.engine.submit(*sequences)
        while self.engine.has_work:
            self.engine.step()
        assert not self.cache.pages.held
        self.cache.prefixes.check()

    def vectors(self, **fields: Any) -> Tensor:
        """The vectors of a job with texts, in their order."""
        self.outputs.clear()
        self.run(*self.sequences(**fields))
        ends = {one.sequence.choice: one.vector for one in self.outputs if one.finish_reason == "stop"}
        raw = [ends[number] for number in sorted(ends)]
        return torch.stack([torch.frombuffer(bytearray(one or b""), dtype=torch.float32) for one in raw])


def as_ids(texts: Rows[Rows[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, texts))


@pytest.mark.parametrize("pooling", list(Pooling))
@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_those_of_transformers(name: str, pooling: Pooling, tmp_path: Path) -> None:
    """In steps of a few tokens, so that most texts are computed in parts."""
    oracle = TINY_FAMILIES[name].model()
    path = write_gguf(TINY_FAMILIES[name], oracle, tmp_path / "tiny.gguf", pooling)
    expected = normalize(pooled(oracle, TEXTS, pooling), dim=-1)
    for tokens_a_step in (16, 1000):
        found = TextEngine(path, tokens_a_step).vectors(text_ids=as_ids(TEXTS))
        assert_close(found, expected, atol=CLOSE, rtol=0)


@pytest.fixture(scope="module")
def qwen3() -> "PreTrainedModel":
    return TINY_FAMILIES["qwen3"].model()


@pytest.fixture
def folder(qwen3: "PreTrainedModel", tmp_path: Path) -> Path:
    return write_folder(qwen3, tmp_path / "qwen3")


def test_dimensions_are_cut_and_then_normalised(qwen3: "PreTrainedModel", tmp_path: Path) -> None:
    path = write_gguf(TINY_FAMILIES["qwen3"], qwen3, tmp_path / "tiny.gguf", Pooling.LAST)
    found = TextEngine(path).vectors(text_ids=as_ids(TEXTS), dimensions=24)
    expected = normalize(pooled(qwen3, TEXTS, Pooling.LAST)[:, :24], dim=-1)
    assert_close(found, expected, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("module", [LAST, MEAN])
def test_a_prompt_is_computed_once_where_that_may_be_and_texts_are_never_kept(
    module: Any, folder: Path
) -> None:
    engine = TextEngine(write_modules(folder, module, prompts=PROMPTS), tokens_a_step=1000)
    texts = ("Once upon a time", "there was a llama", "Once " * 30)
    first = engine.vectors(texts=texts, prompt_name="query")
    again = engine.vectors(texts=texts, prompt_name="query")
    assert_close(again, first, atol=2e-5, rtol=0)
    num_prompt = len(engine.maker.tokenizer.encode(PROMPT))
    kept = engine.cache.pages.num_pages - engine.cache.pages.num_free
    assert kept == (num_prompt // PAGE_TOKENS if module is LAST else 0)
    assert engine.cache.prefixes.num_found_tokens >= 3 * PAGE_TOKENS * kept
    plain = engine.vectors(texts=tuple(PROMPT + text for text in texts))
    assert_close(plain, first, atol=2e-5, rtol=0)


@pytest.mark.parametrize("module", [LAST, MEAN])
def test_deterministic_vectors_are_bit_equal_in_any_steps(module: Any, folder: Path) -> None:
    path = write_modules(folder, module)
    found = [
        TextEngine(path, tokens, rows, FIXED).vectors(text_ids=as_ids(TEXTS))
        for tokens, rows in ((1000, 8), (16, 8), (50, 1))
    ]
    assert found[1].equal(found[0])
    assert found[2].equal(found[0])


def test_texts_and_generations_share_steps(qwen3: "PreTrainedModel", tmp_path: Path) -> None:
    """Of a model that can do both: each is as it is alone."""
    path = TINY_FAMILIES["qwen3"].write_gguf(qwen3, tmp_path / "tiny.gguf")
    with open_model(path) as file:
        llama = Llama.load(file)
    engine = TextEngine(write_gguf(TINY_FAMILIES["qwen3"], qwen3, tmp_path / "embeds.gguf", Pooling.MEAN))
    engine.llama, engine.cache = llama, Cache(llama.config, NUM_PAGES)
    runner = ModelRunner(llama, engine.cache, head=engine.head)

    def run(*sequences: Sequence) -> list[StepOutput]:
        outputs: list[StepOutput] = []
        budget = PrefillBudget(16)
        both = Engine(runner, engine.cache.prefixes, max_rows=4, prefill=budget, sink=outputs.extend)
        both.submit(*sequences)
        while both.has_work:
            both.step()
        return outputs

    def texts() -> list[Sequence]:
        return engine.sequences(text_ids=as_ids(TEXTS))

    def told() -> list[Sequence]:
        greedy = SamplingParams(temperature=0.0, max_tokens=20)
        rest: dict[str, Any] = {"seed": 0, "max_length": 512, "eos_ids": frozenset()}
        pieces = [b"x"] * llama.config.vocab_size
        return [
            Sequence(f"told-{at}", TEXTS[at], greedy, detokenizer=Detokenizer(pieces), **rest)
            for at in (1, 3)
        ]

    def ids(outputs: Rows[StepOutput], job_id: str) -> list[int]:
        return [one for output in outputs if output.sequence.job_id == job_id for one in output.ids]

    def vectors(outputs: Rows[StepOutput]) -> Tensor:
        raw = {one.sequence.choice: one.vector for one in outputs if one.vector is not None}
        return torch.stack([torch.frombuffer(bytearray(raw[at]), dtype=torch.float32) for at in sorted(raw)])

    together, alone = run(*texts(), *told()), run(*told())
    assert all(ids(together, name) == ids(alone, name) for name in ("told-1", "told-3"))
    expected = normalize(pooled(qwen3, TEXTS, Pooling.MEAN), dim=-1)
    assert_close(vectors(together), expected, atol=CLOSE, rtol=0)


def test_a_vector_with_nan_ends_its_job_and_no_other(folder: Path) -> None:
    engine = TextEngine(write_modules(folder, LAST))
    engine.llama.norm.weight[0] = float("nan")
    engine.run(*engine.sequences(text_ids=((5, 6),)))
    (end,) = [one for one in engine.outputs if one.finish_reason]
    assert end.error is not None
    assert (end.error.code, end.vector) == ("numeric_error", None)


def told(engine: TextEngine, error: type[Exception], **fields: Any) -> str:
    with pytest.raises(error) as caught:
        engine.sequences(**fields)
    return str(caught.value)


def test_what_the_model_cannot_take_is_refused_with_both_numbers(folder: Path) -> None:
    engine = TextEngine(write_modules(folder, LAST, prompts=PROMPTS))
    room = engine.cache.max_length
    long = [5] * (room + 1)
    words = told(engine, GenerationError, text_ids=((5,), tuple(long)))
    assert f"text_ids.1: {room + 1} tokens, but a text may have at most {room}" in words
    assert "prompt_name: no such prompt. Did you mean query? The model has: none, query" in told(
        engine, InvalidJob, texts=("x",), prompt_name="querry"
    )
    size = engine.maker.tokenizer.vocab_size
    assert f"ids must be below {size}" in told(engine, InvalidJob, text_ids=((size,),))
    assert "dimensions: must be at most 64" in told(engine, InvalidJob, texts=("x",), dimensions=65)
    with pytest.raises(InvalidJob, match=r"embeds texts.* writes no text"):
        engine.maker.check_generates()


def test_a_text_without_a_token_of_its_own_is_refused(folder: Path) -> None:
    engine = TextEngine(write_modules(folder, LAST))
    engine.maker = replace(engine.maker, tokenizer=NoTokens())
    assert "texts.1: has no token of its own" in told(engine, InvalidJob, texts=("x", " "))


class NoTokens:
    """A tokenizer that puts nothing around a text, and has no token for a space."""

    vocab_size = 9

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        return [1] * len(text.strip())


@pytest.mark.parametrize("where", ["start", "end"])
def test_a_long_text_is_cut_where_the_job_says_so(where: str, folder: Path) -> None:
    engine = TextEngine(write_modules(folder, LAST))
    room, text = engine.cache.max_length, "there was a llama " * 200
    (cut,) = engine.sequences(texts=(text,), truncate=where)
    ids = engine.maker.tokenizer.encode(text)
    assert len(cut.prompt_ids) == room < len(ids)
    kept = ids[:room] if where == "end" else [ids[0], *ids[1 - room :]]  # BOS stays
    assert cut.prompt_ids == kept


def test_floats_are_what_the_engine_has_found(folder: Path) -> None:
    engine = TextEngine(write_modules(folder, LAST))
    engine.run(*engine.sequences(texts=("Once",)))
    (vector,) = [one.vector for one in engine.outputs if one.vector is not None]
    assert torch.tensor(floats_of(b64encode(vector).decode())).equal(engine.vectors(texts=("Once",))[0])
