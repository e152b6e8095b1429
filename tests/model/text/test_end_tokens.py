"""What ends a generation: what a file names, and added tokens of the names that models end with."""

from typing import Any

import numpy as np
import pytest
from gguf import TokenType
from tokenizers.pre_tokenizers import ByteLevel

from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.text.vocabulary import end_names

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def values(*added: str, kind: TokenType = TokenType.CONTROL, **keys: int) -> dict[str, Any]:
    """A vocabulary of the bytes and of these tokens, whose ids are 256 and on."""
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": (*BYTES, *added),
        "tokenizer.ggml.scores": np.zeros(256 + len(added), np.float32),
        "tokenizer.ggml.token_type": np.array([TokenType.BYTE] * 256 + [kind] * len(added), np.int32),
        **{f"tokenizer.ggml.{key}_token_id": token_id for key, token_id in keys.items()},
    }


def ends(*added: str, kind: TokenType = TokenType.CONTROL, **keys: int) -> set[str]:
    metadata = Metadata(values(*added, kind=kind, **keys))
    tokens = metadata.strings("tokenizer.ggml.tokens")
    return {tokens[token_id] for token_id in Tokenizer.from_metadata(metadata).eos_ids}


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        # Llama 3, Qwen, Gemma, Phi-3, Mistral, DeepSeek: each file names the first of them only
        (("<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"), 3),
        (("<|endoftext|>", "<|im_end|>", "<|im_start|>"), 2),
        (("<eos>", "<end_of_turn>", "<start_of_turn>"), 2),
        (("<|endoftext|>", "<|end|>", "<|user|>"), 2),
        (("</s>", "[INST]", "[/INST]"), 1),
        (("<｜end▁of▁sentence｜>", "<｜User｜>"), 1),
    ],
)
def test_an_end_that_the_file_does_not_name_ends_a_generation(added: tuple[str, ...], expected: int) -> None:
    assert ends(*added, eos=256) == set(added[:expected])


def test_a_word_of_such_a_name_is_text_and_an_end_that_no_text_becomes_is_none() -> None:
    assert ends("</s>", "<|im_end|>", kind=TokenType.NORMAL) == {"</s>", "<|im_end|>"}
    assert ends("</", "s>", "</s>", "<|im_end|>", kind=TokenType.NORMAL) == {"<|im_end|>"}
    assert ends("</s>", "<|im_end|>", kind=TokenType.USER_DEFINED) == {"</s>", "<|im_end|>"}
    assert ends("</s>", kind=TokenType.NORMAL, eos=256) == {"</s>"}


@pytest.mark.parametrize("role", ["bos", "eos", "eot", "unknown"])
def test_a_byte_in_a_role_stays_a_byte_of_texts(role: str) -> None:
    """As in llama.cpp: a file that names one by mistake loses nothing."""
    tokenizer = Tokenizer.from_metadata(Metadata(values("</s>", **{"eos": 256, role: 10})))
    assert 10 in tokenizer.encode("a\nb", add_bos=False)
    assert tokenizer.decode([10]) == "\n"
    assert (10 in tokenizer.eos_ids) == (role in ("eos", "eot"))


@pytest.mark.parametrize(
    ("tokens", "is_complained_of"),
    [(("<user>",), True), (("<us", "er>", "<user>"), False), (("<other>",), False)],
)
def test_a_mark_of_a_template_that_no_text_becomes_is_complained_of(
    tokens: tuple[str, ...], is_complained_of: bool
) -> None:
    template = {"tokenizer.chat_template": "<user>{{ messages }}<|end|>"}
    metadata = Metadata({**values("</s>", *tokens, kind=TokenType.NORMAL, eos=256), **template})
    complaints = Tokenizer.from_metadata(metadata).complaints
    assert ["'<user>'" in one and "read in pieces" in one for one in complaints] == [True] * is_complained_of


def test_code_ends_where_a_key_says_and_else_by_its_names() -> None:
    assert ends("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_prefix|>") == {
        "<|fim_pad|>",
        "<|repo_name|>",
        "<|file_sep|>",
    }
    assert ends("<PAD>", "<pad>", fim_pad=257) == {"<pad>"}


@pytest.mark.parametrize(
    ("name", "company"),
    [
        ("<|end|>", {"<|return|>", "<|call|>"}),
        ("<|end|>", {"<|calls|>", "<|flush|>"}),
        ("</s>", {"<|tool_response>"}),
    ],
)
def test_in_some_company_a_name_ends_nothing(name: str, company: set[str]) -> None:
    assert end_names({name}) == {name}
    assert end_names(company | {name}) == company


@pytest.mark.parametrize("num_merges", range(4))
def test_an_end_that_merges_make_is_a_word_and_one_that_they_do_not_make_is_none(num_merges: int) -> None:
    tokens = (*sorted(ByteLevel.alphabet()), "</", "s>", "</s>", "<|im_end|>")
    metadata = Metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "qwen2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": np.full(len(tokens), TokenType.NORMAL, np.int32),
            "tokenizer.ggml.merges": ("< /", "s >", "</ s>")[:num_merges],
        }
    )
    ends = {tokens[token_id] for token_id in Tokenizer.from_metadata(metadata).eos_ids}
    assert ends == ({"<|im_end|>"} if num_merges == 3 else {"</s>", "<|im_end|>"})


def test_no_text_becomes_an_end_whatever_its_type_was() -> None:
    tokenizer = Tokenizer.from_metadata(Metadata(values("<|im_end|>", kind=TokenType.USER_DEFINED)))
    assert tokenizer.decode(tokenizer.encode("<|im_end|>")).endswith("<|im_end|>")
    assert tokenizer.eos_ids.isdisjoint(tokenizer.encode("<|im_end|>"))
