"""What a model makes of a job with texts: their ids, cut or refused."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from llama_herd.errors import GenerationError, InvalidJob
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.tasks.protocol.embedding_job import EmbeddingJob
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.testing.vocabulary import Vocabulary
from tests.model.modules_folder import LAST, write_modules
from tests.model.tiny_embedder import PROMPT, PROMPTS, TEXTS, write_folder
from tests.model.tiny_family import TINY_FAMILIES
from tests.model.tiny_folder import write_tiny_tokenizer
from tests.tiny import EOS_ID
from tests.worker.text_engine import TextEngine


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(TINY_FAMILIES["qwen3"].model(), tmp_path_factory.mktemp("qwen3"))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A folder of Qwen 3 that becomes an embedder by the modules that a test writes."""
    return shutil.copytree(saved, tmp_path / "qwen3")


def refusal(engine: TextEngine, error: type[Exception], **fields: Any) -> str:
    with pytest.raises(error) as caught:
        engine.sequences(EmbeddingJob(**fields))
    return str(caught.value)


def test_what_the_model_cannot_take_is_refused_with_both_numbers(folder: Path) -> None:
    engine = TextEngine(write_modules(folder, LAST, prompts=PROMPTS))
    room = engine.model.cache.max_length
    words = refusal(engine, GenerationError, text_ids=((5,), (5,) * (room + 1)))
    assert f"text_ids.1: {room + 1} tokens, but a text may have at most {room}" in words
    assert "prompt_name: no such prompt. Did you mean query? The model has: none, query" in refusal(
        engine, InvalidJob, texts=("x",), prompt_name="querry"
    )
    size = engine.model.tokenizer.vocab_size
    assert f"ids must be below {size}" in refusal(engine, InvalidJob, text_ids=((size,),))
    assert "dimensions: must be at most 64" in refusal(engine, InvalidJob, texts=("x",), dimensions=65)
    with pytest.raises(InvalidJob, match=r"embeds texts.* writes no text"):
        engine.sequences(GenerationJob(prompt="x"))


def test_a_text_is_no_longer_than_its_model_says(folder: Path) -> None:
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 100}))
    engine = TextEngine(write_modules(folder, LAST))
    assert "text_ids.0: 130 tokens, but a text may have at most 100" in refusal(
        engine, GenerationError, text_ids=(tuple(TEXTS[5]),)
    )


def test_a_text_without_a_token_of_its_own_is_refused(folder: Path) -> None:
    maker = TextEngine(write_modules(folder, LAST)).model.maker.texts
    job = EmbeddingJob(texts=("x", " "))
    with pytest.raises(InvalidJob, match=r"texts.1: has no token of its own"):
        replace(maker, tokenizer=NoTokens()).sequences("texts", job, None)


class NoTokens(Vocabulary):
    """A tokenizer that puts nothing around a text, and has no token for a space."""

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        return [1] * len(text.strip())


@pytest.mark.parametrize("prompt", [None, "query"])
@pytest.mark.parametrize("where", ["start", "end"])
def test_a_long_text_is_cut_where_the_job_says_so(
    where: Literal["start", "end"], prompt: str | None, folder: Path
) -> None:
    """What stands around it stays: BOS, the prompt and EOS."""
    write_tiny_tokenizer(folder, eos_token="</s>", add_eos_token=True)
    engine = TextEngine(write_modules(folder, LAST, prompts=PROMPTS))
    room, text = engine.model.cache.max_length, "there was a llama " * 200
    (cut,) = engine.sequences(EmbeddingJob(texts=(text,), truncate=where, prompt_name=prompt))
    asked = PROMPT if prompt else ""
    ids = engine.model.tokenizer.encode(asked + text)
    assert len(cut.prompt_ids) == room < len(ids)
    before = engine.model.tokenizer.encode(asked)[:-1]
    kept = [*ids[: room - 1], EOS_ID] if where == "end" else [*before, *ids[len(before) - room :]]
    assert cut.prompt_ids == kept


def test_a_prompt_that_leaves_a_text_no_room_is_refused(folder: Path) -> None:
    engine = TextEngine(write_modules(folder, LAST, prompts=PROMPTS), kv_cache_tokens=PAGE_TOKENS)
    told = refusal(engine, GenerationError, texts=("x" * 99,), prompt_name="query", truncate="end")
    assert re.search(r"texts.0: \d+ tokens, but a text may have at most 64. Fix: a shorter prompt", told)
