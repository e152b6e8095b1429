"""The law of ranks: a score is transformers' softmax of two logits, however many documents are beside it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from llama_herd.errors import GenerationError, ModelFileError
from llama_herd.model.files.open_model import open_model
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.shape.purpose import CARD_TEMPLATE
from llama_herd.tasks.protocol.ranking_job import RankingJob
from tests.closeness import assert_close
from tests.model.tiny_family import TINY_FAMILIES, TinyFamily
from tests.model.tiny_folder import tiny_engine
from tests.model.tiny_reranker import (
    DOCUMENTS,
    NAMES,
    NO,
    QUERY,
    YES,
    expected_logits,
    write_folder,
    write_gguf,
    yes_no_engine,
)
from tests.worker.text_engine import TextEngine

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@pytest.fixture(scope="module", params=NAMES)
def family(request: pytest.FixtureRequest) -> TinyFamily:
    return TINY_FAMILIES[request.param]


@pytest.fixture(scope="module")
def oracle(family: TinyFamily) -> "PreTrainedModel":
    return family.model()


@pytest.fixture
def reranker(family: TinyFamily, oracle: "PreTrainedModel", tmp_path: Path) -> Iterator[TextEngine]:
    with TextEngine(write_folder(oracle, tmp_path / "folder", [YES, NO])) as engine:
        yield engine


def ids_of(reranker: TextEngine, query: str, document: str) -> list[int]:
    (sequence,) = reranker.sequences(RankingJob(query=query, documents=(document,)))
    return sequence.prompt_ids


def test_scores_of_a_folder_are_those_of_transformers(
    reranker: TextEngine, oracle: "PreTrainedModel"
) -> None:
    assert reranker.model.llama.output is None
    expected = expected_logits(oracle, QUERY, DOCUMENTS, [YES, NO])
    for reranker.step_tokens in (1000, 50):
        assert_close(reranker.ranks(QUERY, DOCUMENTS), expected, atol=1e-4, rtol=0)
    alone = torch.cat([reranker.ranks(QUERY, [document]) for document in DOCUMENTS])
    assert_close(alone, expected, atol=1e-4, rtol=0)


def test_scores_of_a_gguf_file_are_those_of_transformers(
    family: TinyFamily, oracle: "PreTrainedModel", tmp_path: Path
) -> None:
    """llama.cpp's are, too, for Qwen 3; it scales the logits of no family."""
    with TextEngine(write_gguf(family, oracle, tmp_path / "tiny.gguf")) as reranker:
        logits = reranker.ranks(QUERY, DOCUMENTS)
    assert_close(logits, expected_logits(oracle, QUERY, DOCUMENTS, [YES, NO]), atol=1e-4, rtol=0)


def test_one_label_alone_gives_its_own_logit(
    family: TinyFamily, oracle: "PreTrainedModel", tmp_path: Path
) -> None:
    with TextEngine(write_folder(oracle, tmp_path / "folder", [YES])) as reranker:
        logits = reranker.ranks(QUERY, DOCUMENTS)
    assert_close(logits, expected_logits(oracle, QUERY, DOCUMENTS, [YES]), atol=1e-4, rtol=0)


def test_deterministic_ranks_are_bit_equal_however_documents_come(tmp_path: Path) -> None:
    folder = write_folder(TINY_FAMILIES["qwen3"].model(), tmp_path / "folder", [YES, NO])
    with TextEngine(folder, deterministic=True) as reranker:
        whole = reranker.ranks(QUERY, DOCUMENTS)
        reranker.step_tokens = 50
        assert reranker.ranks(QUERY, DOCUMENTS).equal(whole)
        assert torch.cat([reranker.ranks(QUERY, [document]) for document in DOCUMENTS]).equal(whole)


def test_what_comes_before_the_documents_is_computed_once_and_no_document_is_kept(
    reranker: TextEngine,
) -> None:
    reranker.ranks(QUERY, DOCUMENTS)
    num_before = len(ids_of(reranker, QUERY, "a")) - len(ids_of(reranker, "a", "a"))
    assert reranker.num_kept >= num_before // PAGE_TOKENS > 0
    assert reranker.prefixes.num_found_tokens == PAGE_TOKENS * reranker.num_kept * (len(DOCUMENTS) - 1)


def test_no_text_becomes_a_control_token(reranker: TextEngine, oracle: "PreTrainedModel") -> None:
    spelled = "</s>\n\n<s>Judge"
    ids = ids_of(reranker, spelled, spelled)
    assert [token_id for token_id in ids if token_id in (1, 2)] == [1, 2]
    documents = [spelled, "</s>"]
    expected = expected_logits(oracle, spelled, documents, [YES, NO])
    assert_close(reranker.ranks(spelled, documents), expected, atol=1e-4, rtol=0)


def test_an_instruction_of_the_folder_comes_first(oracle: "PreTrainedModel", tmp_path: Path) -> None:
    folder = write_folder(oracle, tmp_path / "folder", [YES, NO])
    (folder / "chat_template.jinja").write_text("{{ messages | map(attribute='role') | join(' ') }}")
    prompts = {"prompts": {"web": "Find."}, "default_prompt_name": "web"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    with TextEngine(folder) as reranker:
        assert ids_of(reranker, "a", "b") == tiny_engine().encode("system query document").ids[1:]


def test_a_setting_makes_a_reranker_of_a_qwen_3_as_its_card_does(tmp_path: Path) -> None:
    """The card's own code: both parts of the template and the pair between them, each encoded alone."""
    oracle, folder = TINY_FAMILIES["qwen3"].model(), tmp_path / "folder"
    oracle.save_pretrained(folder)
    tokenizer = yes_no_engine()
    tokenizer.save(str(folder / "tokenizer.json"))

    def encoded(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text).ids
        return ids

    query, documents = "Do llamas spit?", ["Llamas spit.", "Alpacas hum. " * 5]
    before, _, rest = CARD_TEMPLATE.partition("<Instruct>")
    pair, end, behind = rest.partition("<|im_end|>")
    expected = []
    for document in documents:
        middle = encoded("<Instruct>" + pair.replace("{query}", query).replace("{document}", document))
        with torch.inference_mode():
            ids = torch.tensor([encoded(before) + middle + encoded(end + behind)])
            logits = oracle(ids).logits[0, -1]
        expected.append(logits[tokenizer.token_to_id("yes")] - logits[tokenizer.token_to_id("no")])
    with TextEngine(folder, pooling="rank") as reranker:
        logits = reranker.ranks(query, documents)
    assert_close(logits, torch.stack(expected), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"labels": False}, r"tensor cls.output.weight is missing"),
        ({"template": False}, r"tokenizer.chat_template.rerank is missing, which is needed to rank"),
    ],
)
def test_a_file_that_lacks_a_part_is_refused(parts: dict[str, bool], message: str, tmp_path: Path) -> None:
    family = TINY_FAMILIES["qwen3"]
    path = write_gguf(family, family.model(), tmp_path / "tiny.gguf", **parts)
    with pytest.raises(ModelFileError, match=message):
        open_model(path)


def test_a_folder_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    oracle = TINY_FAMILIES["qwen3"].model()
    folder = write_folder(oracle, tmp_path / "folder", [YES, 100_000])
    with pytest.raises(ModelFileError, match="100000 is no token of its vocabulary"):
        TextEngine(folder)
    write_folder(oracle, folder, [YES, NO])
    (folder / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ModelFileError, match="the chat template"):
        TextEngine(folder)
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelFileError, match="has no chat template, which is needed to rank"):
        TextEngine(folder)


def test_a_document_that_is_too_long_is_refused_by_both_numbers(reranker: TextEngine) -> None:
    with pytest.raises(GenerationError, match=r"documents.1, with the query: \d+ tokens, .* at most 512"):
        reranker.ranks("Do llamas spit?", ["Yes.", "Llamas spit. " * 200])
