"""Merges that a file's scores imply, on vocabularies of a few letters."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from gguf import TokenType

from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.spm import recover_merges, spm_piece
from llama_herd.model.text.tokenizer import Tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def tokenizer(scores: dict[str, float], control: str = "") -> Tokenizer:
    """A vocabulary of these tokens, whose ids are 256 and on in this order."""
    kinds = [TokenType.CONTROL if token == control else TokenType.NORMAL for token in scores]
    values: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": (*BYTES, *scores),
        "tokenizer.ggml.scores": np.array([0.0] * 256 + list(scores.values()), np.float32),
        "tokenizer.ggml.token_type": np.array([TokenType.BYTE] * 256 + kinds, np.int32),
        "tokenizer.ggml.add_space_prefix": False,
    }
    return Tokenizer.from_metadata(Metadata(values))


def encoded(tokenizer: Tokenizer, text: str) -> list[bytes]:
    return [tokenizer.pieces[token_id] for token_id in tokenizer.encode(text)]


@pytest.mark.parametrize(("ab", "bc", "expected"), [(-1, -2, [b"ab", b"c"]), (-2, -1, [b"a", b"bc"])])
def test_the_better_score_is_joined_first_whatever_the_order_of_ids(
    ab: float, bc: float, expected: list[bytes]
) -> None:
    scores = {"a": -9.0, "b": -9.0, "c": -9.0}
    assert encoded(tokenizer({"ab": ab, "bc": bc, **scores}), "abc") == expected
    assert encoded(tokenizer({"bc": bc, "ab": ab, **scores}), "abc") == expected


def test_every_split_into_two_tokens_is_a_merge() -> None:
    ids = {"a": 0, "b": 1, "ab": 2, "ba": 3, "aba": 4}
    merges = recover_merges(ids, [-5.0, -5.0, -2.0, -3.0, -1.0])
    assert merges == [("a", "ba"), ("ab", "a"), ("a", "b"), ("b", "a")]


def test_of_two_splits_the_one_with_the_older_beginning_comes_first() -> None:
    for tokens in permutations(("a", "b", "ab", "ba")):
        ids = {token: number for number, token in enumerate((*tokens, "aba"))}
        first, second = recover_merges(ids, [-5.0] * 4 + [-1.0])[:2]
        assert {first, second} == {("a", "ba"), ("ab", "a")}
        assert ids[first[0]] < ids[second[0]]


def test_a_control_token_stays_out_even_where_tokens_join_to_its_name() -> None:
    letters = {"<": -9.0, "s": -9.0, ">": -9.0, "<s": -1.0, "<s>": -0.5}
    assert encoded(tokenizer(letters), "<s>") == [b"<s>"]
    assert encoded(tokenizer(letters, control="<s>"), "<s>") == [b"<s", b">"]


def test_a_piece_is_a_byte_or_text_with_its_spaces() -> None:
    pieces = [spm_piece(token) for token in ("<0x0A>", "▁the", "<0x0a>", "é")]
    assert pieces == [b"\n", b" the", b"<0x0a>", b"\xc3\xa9"]


def test_a_user_defined_token_of_spaces_is_found_where_a_text_has_spaces() -> None:
    """Converters write the spaces of added tokens as spaces: Gemma's indents."""
    values: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": (*BYTES, "a", "   "),
        "tokenizer.ggml.scores": np.zeros(258, np.float32),
        "tokenizer.ggml.token_type": np.array(
            [TokenType.BYTE] * 256 + [TokenType.NORMAL, TokenType.USER_DEFINED], np.int32
        ),
        "tokenizer.ggml.add_space_prefix": False,
    }
    indented = Tokenizer.from_metadata(Metadata(values))
    assert indented.encode("a   a") == [256, 257, 256]
    assert indented.decode([256, 257, 256]) == "a   a"
