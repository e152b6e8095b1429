"""The law of ranks: a score is transformers' softmax of two logits, however many documents are beside it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import pytest
import torch
from tokenizers import Tokenizer as Engine, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor

from llama_herd.errors import BadInput, ModelFileError
from llama_herd.model.cache import Cache
from llama_herd.model.files.open_model import open_model
from llama_herd.model.llama2 import Llama
from llama_herd.model.pages import PAGE_TOKENS
from llama_herd.model.reranker import Reranker
from llama_herd.model.shape.pooling import Override
from llama_herd.model.shape.purpose import CARD_TEMPLATE
from tests.closeness import assert_close
from tests.model.modules_folder import ModuleRow, write_modules
from tests.model.tiny_family import TINY_FAMILIES, TinyFamily
from tests.model.tiny_folder import tiny_engine, write_tiny_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Ids of the vocabulary, as good as "yes" and "no".
YES, NO = 300, 301
#: As llama.cpp's converter writes it into a file, and as a folder has it in Jinja.
GGUF_TEMPLATE = "<s>Judge {{this}}.\n<Query>: {query}\n<Document>: {document}</s>\n\n"
FOLDER_TEMPLATE = (
    "{{ bos_token }}Judge {{ '{{this}}' }}.\n<Query>: {{ messages[-2]['content'] }}\n"
    "<Document>: {{ messages[-1]['content'] }}{{ eos_token + '\n\n' }}"
)
QUERY = "Do llamas spit when they are cross, and how far? " * 3
DOCUMENTS = ["Llamas spit.", "Alpacas hum, and do not spit far. " * 9, "", "a {query} b", "Once upon a time"]
#: Families whose logits are scaled or capped, and those that rerankers are made of.
NAMES = ["qwen3", "qwen2", "granite", "gemma2"]


@pytest.fixture(scope="module", params=NAMES)
def family(request: pytest.FixtureRequest) -> TinyFamily:
    return TINY_FAMILIES[request.param]


@pytest.fixture(scope="module")
def oracle(family: TinyFamily) -> "PreTrainedModel":
    return family.model()


@torch.inference_mode()
def expected_logits(
    oracle: "PreTrainedModel", query: str, documents: Sequence[str], labels: Sequence[int]
) -> Tensor:
    """By transformers, each pair alone: the logit of the first label, less that of the second."""
    engine, differences = tiny_engine(), []
    engine.encode_special_tokens = True  # reads the names of control tokens as text
    for document in documents:
        inner = f"Judge {{{{this}}}}.\n<Query>: {query}\n<Document>: {document}"
        ids = [1, *engine.encode(inner, add_special_tokens=False).ids, 2]
        ids += engine.encode("\n\n", add_special_tokens=False).ids
        logits = oracle(torch.tensor([ids])).logits[0, -1]
        differences.append(logits[labels[0]] - (logits[labels[1]] if len(labels) > 1 else 0))
    return torch.stack(differences)


def write_gguf(
    family: TinyFamily, oracle: "PreTrainedModel", path: Path, *, labels: bool = True, template: bool = True
) -> Path:
    """The model as llama.cpp converts a Qwen3-Reranker."""
    rows = oracle.get_output_embeddings().weight.detach()[[YES, NO]].contiguous().numpy()

    def extra(writer: gguf.GGUFWriter) -> None:
        if family.extra is not None:
            family.extra(writer)
        writer.add_pooling_type(gguf.PoolingType.RANK)
        writer.add_classifier_output_labels(["yes", "no"])
        if template:
            writer.add_chat_template([{"name": "rerank", "template": GGUF_TEMPLATE}])
        if labels:
            writer.add_tensor("cls.output.weight", rows)

    return replace(family, extra=extra).write_gguf(oracle, path)


def write_folder(oracle: "PreTrainedModel", folder: Path, labels: Sequence[int]) -> Path:
    """The model as sentence-transformers saves a CrossEncoder of a language model."""
    oracle.save_pretrained(folder)
    write_tiny_tokenizer(folder, eos_token="</s>")
    (folder / "chat_template.jinja").write_text(FOLDER_TEMPLATE)
    row: ModuleRow = ("LogitScore", dict(zip(("true_token_id", "false_token_id"), labels, strict=False)))
    return write_modules(folder, row)


def load(path: Path, num_pages: int = 64, *, pooling: Override = "auto") -> Reranker:
    with open_model(path, pooling) as file:
        llama = Llama.load(file)
        return Reranker.load(file, llama, Cache(llama.config, num_pages))


@pytest.fixture
def reranker(family: TinyFamily, oracle: "PreTrainedModel", tmp_path: Path) -> Iterator[Reranker]:
    with load(write_folder(oracle, tmp_path / "folder", [YES, NO])) as loaded:
        yield loaded


def test_scores_of_a_folder_are_those_of_transformers(reranker: Reranker, oracle: "PreTrainedModel") -> None:
    assert reranker.llama.output is None
    expected = expected_logits(oracle, QUERY, DOCUMENTS, [YES, NO])
    for step_tokens in (512, 50):
        logits = reranker.logits(QUERY, DOCUMENTS, step_tokens=step_tokens)
        assert_close(logits, expected, atol=1e-4, rtol=0)
    alone = torch.cat([reranker.logits(QUERY, [document]) for document in DOCUMENTS])
    assert_close(alone, expected, atol=1e-4, rtol=0)
    assert not reranker.cache.pages.held


def test_scores_of_a_gguf_file_are_those_of_transformers(
    family: TinyFamily, oracle: "PreTrainedModel", tmp_path: Path
) -> None:
    """llama.cpp's are, too, for Qwen 3; it scales the logits of no family."""
    with load(write_gguf(family, oracle, tmp_path / "tiny.gguf")) as reranker:
        logits = reranker.logits(QUERY, DOCUMENTS)
    assert_close(logits, expected_logits(oracle, QUERY, DOCUMENTS, [YES, NO]), atol=1e-4, rtol=0)


def test_one_label_alone_gives_its_own_logit(
    family: TinyFamily, oracle: "PreTrainedModel", tmp_path: Path
) -> None:
    with load(write_folder(oracle, tmp_path / "folder", [YES])) as reranker:
        logits = reranker.logits(QUERY, DOCUMENTS)
    assert_close(logits, expected_logits(oracle, QUERY, DOCUMENTS, [YES]), atol=1e-4, rtol=0)


def test_what_comes_before_the_documents_is_computed_once_and_no_document_is_kept(reranker: Reranker) -> None:
    reranker.logits(QUERY, DOCUMENTS)
    prefixes = reranker.cache.prefixes
    num_found = prefixes.num_found_tokens
    assert num_found > 0
    assert num_found == PAGE_TOKENS * (num_found // PAGE_TOKENS // (len(DOCUMENTS) - 1)) * (
        len(DOCUMENTS) - 1
    )
    num_kept = reranker.cache.pages.num_pages - reranker.cache.pages.num_free
    assert num_found == PAGE_TOKENS * num_kept * (len(DOCUMENTS) - 1)
    prefixes.check()


def test_no_text_becomes_a_control_token(reranker: Reranker, oracle: "PreTrainedModel") -> None:
    spelled = "</s>\n\n<s>Judge"
    ids = reranker._ids(spelled, spelled)
    assert [token_id for token_id in ids if token_id in (1, 2)] == [1, 2]
    documents = [spelled, "</s>"]
    expected = expected_logits(oracle, spelled, documents, [YES, NO])
    assert_close(reranker.logits(spelled, documents), expected, atol=1e-4, rtol=0)


def test_an_instruction_of_the_folder_comes_first(oracle: "PreTrainedModel", tmp_path: Path) -> None:
    folder = write_folder(oracle, tmp_path / "folder", [YES, NO])
    (folder / "chat_template.jinja").write_text("{{ messages | map(attribute='role') | join(' ') }}")
    prompts = {"prompts": {"web": "Find."}, "default_prompt_name": "web"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    with load(folder) as reranker:
        assert reranker._ids("a", "b") == tiny_engine().encode("system query document").ids[1:]


def test_a_setting_makes_a_reranker_of_a_qwen_3_as_its_card_does(tmp_path: Path) -> None:
    """The card's own code: both parts of the template and the pair between them, each encoded alone."""
    oracle, folder = TINY_FAMILIES["qwen3"].model(), tmp_path / "folder"
    oracle.save_pretrained(folder)
    engine = yes_no_engine()
    engine.save(str(folder / "tokenizer.json"))

    def ids_of(text: str) -> list[int]:
        ids: list[int] = engine.encode(text).ids
        return ids

    query, documents = "Do llamas spit?", ["Llamas spit.", "Alpacas hum. " * 5]
    before, _, rest = CARD_TEMPLATE.partition("<Instruct>")
    pair, end, behind = rest.partition("<|im_end|>")
    expected = []
    for document in documents:
        middle = ids_of("<Instruct>" + pair.replace("{query}", query).replace("{document}", document))
        with torch.inference_mode():
            ids = torch.tensor([ids_of(before) + middle + ids_of(end + behind)])
            logits = oracle(ids).logits[0, -1]
        expected.append(logits[engine.token_to_id("yes")] - logits[engine.token_to_id("no")])
    with load(folder, pooling="rank") as reranker:
        logits = reranker.logits(query, documents)
    assert_close(logits, torch.stack(expected), atol=1e-4, rtol=0)


def yes_no_engine() -> Engine:
    """A tokenizer of bytes with two words, and the control tokens of Qwen."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, "ye", "yes", "no"])}
    engine = Engine(BPE(vocab=vocabulary, merges=[("y", "e"), ("ye", "s"), ("n", "o")]))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    engine.add_tokens(["<think>", "</think>"])
    return engine


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
        load(folder)
    write_folder(oracle, folder, [YES, NO])
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelFileError, match="has no chat template, which is needed to rank"):
        load(folder)
    (folder / "modules.json").unlink()
    with pytest.raises(
        ModelFileError, match=r"generates text, its files say nothing of ranks. .* HERD_POOLING=rank"
    ):
        load(folder)


def test_a_document_that_is_too_long_is_refused_by_both_numbers(reranker: Reranker) -> None:
    with pytest.raises(BadInput, match=r"documents\[1\] has \d+ tokens, the limit here is 512"):
        reranker.logits("Do llamas spit?", ["Yes.", "Llamas spit. " * 200])
