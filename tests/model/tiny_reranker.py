"""Tiny models that rank, as files, and what transformers makes of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import torch
from tokenizers import Tokenizer as Engine, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor

from tests.model.modules_folder import ModuleRow, write_modules
from tests.model.tiny_family import TinyFamily
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
DOCUMENTS = ["Llamas spit.", "Alpacas hum, and do not spit far. " * 9, " ", "a {query} b", "Once upon a time"]
#: Families whose logits are scaled or capped, and those that rerankers are made of.
NAMES = ["qwen3", "qwen2", "granite", "gemma2"]


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
