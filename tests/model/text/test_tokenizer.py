"""The tokenizer equals sentencepiece, gives back what it got, and lets no text become a control token."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import sentencepiece
from gguf import TokenType

from llama_herd.errors import BadInput, ModelFileError
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.tokenizer import Tokenizer
from tests.model.corpus import NUM_TEXTS, mixed_texts
from tests.model.sentence_piece import BOS_ID, CONTROL_IDS, EOS_ID, gguf_values, train_sentence_piece


@pytest.fixture(scope="session")
def texts() -> Sequence[str]:
    return mixed_texts()


@pytest.fixture(scope="session")
def sentence_piece() -> sentencepiece.SentencePieceProcessor:
    return train_sentence_piece()


@pytest.fixture(scope="session")
def spm_values(sentence_piece: sentencepiece.SentencePieceProcessor) -> dict[str, Any]:
    return gguf_values(sentence_piece)


@pytest.fixture(scope="session")
def spm(spm_values: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_metadata(Metadata(spm_values))


@pytest.mark.long
@NUM_TEXTS
def test_ids_equal_sentencepieces(
    spm: Tokenizer, sentence_piece: sentencepiece.SentencePieceProcessor, num_texts: int
) -> None:
    texts = mixed_texts(num_texts)
    wrong = [text for text in texts if spm.encode(text, add_bos=False) != sentence_piece.encode(text)]
    assert wrong == []


def test_a_text_comes_back_with_a_space_before_it(spm: Tokenizer, texts: Sequence[str]) -> None:
    for text in texts:
        expected = (" " + text if text else "").replace("▁", " ")
        assert spm.decode(spm.encode(text, add_bos=False)) == expected


def test_decoding_equals_sentencepieces(
    spm: Tokenizer, sentence_piece: sentencepiece.SentencePieceProcessor, texts: Sequence[str]
) -> None:
    """But for the leading space, which sentencepiece drops."""
    for text in texts:
        ids = sentence_piece.encode(text)
        assert spm.decode(ids).removeprefix(" ") == sentence_piece.decode(ids)


def test_no_text_becomes_a_control_token(spm: Tokenizer, texts: Sequence[str]) -> None:
    for text in texts:
        assert CONTROL_IDS.isdisjoint(spm.encode(text, add_bos=False))


def test_bos_comes_first_when_the_file_or_the_caller_says_so(
    spm: Tokenizer, spm_values: dict[str, Any]
) -> None:
    bare = spm.encode("the", add_bos=False)
    assert spm.encode("the") == spm.encode("the", add_bos=True) == [BOS_ID, *bare]
    without = Tokenizer.from_metadata(Metadata({**spm_values, "tokenizer.ggml.add_bos_token": False}))
    assert without.encode("the") == bare
    assert without.encode("the", add_bos=True) == [BOS_ID, *bare]


def test_eos_comes_last_when_the_file_says_so(spm: Tokenizer, spm_values: dict[str, Any]) -> None:
    bare = spm.encode("the", add_bos=False)
    values = {**spm_values, "tokenizer.ggml.add_eos_token": True}
    tokenizer = Tokenizer.from_metadata(Metadata(values))
    assert tokenizer.encode("the") == [BOS_ID, *bare, EOS_ID]
    assert tokenizer.encode("the", add_bos=False) == bare


def test_without_a_bos_token_none_is_added(spm_values: dict[str, Any]) -> None:
    types = spm_values["tokenizer.ggml.token_type"].copy()
    types[BOS_ID] = TokenType.USER_DEFINED  # else it would be BOS without a word
    values = {key: value for key, value in spm_values.items() if "bos" not in key}
    values |= {"tokenizer.ggml.token_type": types, "tokenizer.ggml.add_bos_token": True}
    tokenizer = Tokenizer.from_metadata(Metadata(values))
    assert tokenizer.bos_id is None
    assert tokenizer.encode("the") == tokenizer.encode("the", add_bos=False)
    assert "add_bos_token is true, but there is no such token" in tokenizer.complaints[-1]
    with pytest.raises(BadInput, match="no BOS token"):
        tokenizer.encode("the", add_bos=True)


def test_a_sentence_piece_vocabulary_means_its_first_ids_where_it_names_none(
    spm: Tokenizer, spm_values: dict[str, Any]
) -> None:
    values = {key: value for key, value in spm_values.items() if not key.endswith("_token_id")}
    tokenizer = Tokenizer.from_metadata(Metadata(values))
    named = (tokenizer.bos_id, tokenizer.eos_ids)
    assert named == (spm.bos_id, spm.eos_ids) == (BOS_ID, frozenset({EOS_ID}))


def test_without_a_space_prefix_a_text_comes_back_as_it_is(spm_values: dict[str, Any]) -> None:
    values = {**spm_values, "tokenizer.ggml.add_space_prefix": False}
    tokenizer = Tokenizer.from_metadata(Metadata(values))
    assert tokenizer.decode(tokenizer.encode("the  other ")) == "the  other "


def test_every_end_that_the_file_names_ends_a_generation(spm_values: dict[str, Any]) -> None:
    ends = {"tokenizer.ggml.eot_token_id": 300, "tokenizer.ggml.eom_token_id": 301}
    tokenizer = Tokenizer.from_metadata(Metadata({**spm_values, **ends}))
    assert tokenizer.eos_ids == {EOS_ID, 300, 301}
    assert tokenizer.pieces[300] == spm_values["tokenizer.ggml.tokens"][300].encode()  # a word of texts
    assert [complaint.split()[1] for complaint in tokenizer.complaints] == [*ends]
    assert tokenizer.chat_templates == {}


@pytest.mark.parametrize("kind", [-1, 0, 7])
def test_a_token_of_no_known_type_is_of_no_use(kind: int, spm: Tokenizer, spm_values: dict[str, Any]) -> None:
    (the,) = spm.encode("the", add_bos=False)
    types = spm_values["tokenizer.ggml.token_type"].copy()
    types[[the, EOS_ID]] = kind
    values = Metadata({**spm_values, "tokenizer.ggml.token_type": types}, "my.gguf")
    tokenizer = Tokenizer.from_metadata(values)
    ids = tokenizer.encode("the", add_bos=False)
    assert the not in ids
    assert tokenizer.decode(ids) == " the"
    assert (tokenizer.pieces[the], tokenizer.eos_ids) == (b"", frozenset({EOS_ID}))
    assert ControlTokens.from_metadata(values, tokenizer).ids.keys() == {"<unk>", "<s>", "</s>"}
    complaint = f"my.gguf: tokenizer.ggml.token_type holds {kind}, known are 1 to 6, so its tokens count as"
    assert tokenizer.complaints == (f"{complaint} unused",)


def test_a_word_of_the_lowest_score_is_joined_last(spm: Tokenizer, spm_values: dict[str, Any]) -> None:
    (the,) = spm.encode("the", add_bos=False)
    scores = spm_values["tokenizer.ggml.scores"].copy()
    scores[[the, 999]] = -np.inf
    tokenizer = Tokenizer.from_metadata(Metadata({**spm_values, "tokenizer.ggml.scores": scores}))
    assert tokenizer.decode(tokenizer.encode("the", add_bos=False)) == " the"


def test_pieces_are_the_bytes_of_each_token(spm: Tokenizer, spm_values: dict[str, Any]) -> None:
    tokens = spm_values["tokenizer.ggml.tokens"]
    assert spm.vocab_size == len(tokens) == 1_000
    assert [spm.pieces[token_id] for token_id in CONTROL_IDS] == [b"", b"", b""]
    assert spm.pieces[tokens.index("<0xE4>")] == b"\xe4"
    assert spm.pieces[tokens.index("<|tool|>")] == b"<|tool|>"
    assert spm.pieces[tokens.index("▁the")] == b" the"


def test_bytes_that_are_no_text_are_replaced(spm: Tokenizer) -> None:
    llama = spm.encode("🦙", add_bos=False)
    assert spm.decode(llama) == " 🦙"
    assert spm.decode(llama[:-1]) == " \ufffd"
    assert spm.decode([]) == ""


def test_a_lone_surrogate_is_replaced(spm: Tokenizer) -> None:
    assert spm.decode(spm.encode("a\ud800b", add_bos=False)) == " a\ufffdb"


BAD_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "another model": (
        {"model": "bert"},
        r"model is 'bert', 'llama' and 'gpt2' are supported\. Take another model",
    ),
    "no model": ({"model": None}, "model is missing"),
    "no tokens": ({"tokens": None}, "tokens is missing"),
    "empty tokens": ({"tokens": ()}, "tokens has 0 elements"),
    "tokens of numbers": (
        {"tokens": np.zeros(1_000, np.int32)},
        "tokens is of type ndarray, an array of strings",
    ),
    "a long token": ({"tokens": ("a" * 1_025,)}, "tokens has a token of 1025 characters, limit 1024"),
    "a token twice": ({"tokens": ("a", "b", "a")}, "tokens has the token 'a' 2 times, allowed is once"),
    "too much text": (
        {"tokens": tuple(f"{number:01023}" for number in range(8_300))},
        "tokens has 8490900 characters in all, limit 8388608",
    ),
    "few types": ({"token_type": np.ones(999, np.int32)}, "token_type has 999 elements, needed: 1,000"),
    "types of fractions": ({"token_type": np.ones(1_000, np.float32)}, "token_type holds float32"),
    "unknown types": ({"token_type": np.full(1_000, 7, np.int32)}, "tokens holds 0 byte tokens, <0x00> to"),
    "no byte tokens": (
        {"token_type": np.ones(1_000, np.int32)},
        "tokens holds 0 byte tokens, <0x00> to <0xFF>",
    ),
    "many scores": ({"scores": np.ones(1_001, np.float32)}, "scores has 1,001 elements, needed: 1,000"),
    "scores of numbers": ({"scores": np.ones(1_000, np.int32)}, "scores holds int32"),
}


@pytest.mark.parametrize(("changes", "message"), BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_a_broken_vocabulary_is_refused_by_its_key(
    spm_values: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    changed = {**spm_values, **{f"tokenizer.ggml.{key}": value for key, value in changes.items()}}
    values = {key: value for key, value in changed.items() if value is not None}
    with pytest.raises(ModelFileError, match=rf"my\.gguf: tokenizer\.ggml\.{message}"):
        Tokenizer.from_metadata(Metadata(values, "my.gguf"))
