"""Byte-level BPE from a GGUF file equals the engine that made it, and lets no text become a control token."""

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer as Engine
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence as Steps, Split
from tokenizers.trainers import BpeTrainer

from llama_herd.errors import ModelFileError
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.tokenizer import Tokenizer
from tests.model.corpus import NUM_TEXTS, mixed_texts, words

CONTROL = ("<s>", "</s>", "<|end|>")
USER_DEFINED = "<|tool|>"


@pytest.fixture(scope="session")
def texts() -> Sequence[str]:
    return mixed_texts()


@pytest.fixture(scope="session")
def engine() -> Engine:
    """A small byte-level vocabulary, cut into words as Llama 3's is; some of its tokens no merge makes."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    engine = Engine(BPE())
    engine.pre_tokenizer = Steps([Split(Regex(pattern), "isolated"), ByteLevel(False, use_regex=False)])
    rng = random.Random(0)
    trainer = BpeTrainer(vocab_size=600, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    engine.train_from_iterator([words(rng, 12) + " 1234 ..." for _ in range(1_000)], trainer)
    trained = json.loads(engine.to_str())["model"]
    merges = [(left, right) for left, right in trained["merges"][:-100]]
    engine.model = BPE(vocab=trained["vocab"], merges=merges, ignore_merges=True)
    engine.add_special_tokens([*CONTROL])
    engine.add_tokens([AddedToken(USER_DEFINED, normalized=False)])
    engine.encode_special_tokens = True
    return engine


@pytest.fixture(scope="session")
def values(engine: Engine) -> dict[str, Any]:
    """The metadata that llama.cpp's converter writes for this vocabulary."""
    size = engine.get_vocab_size()
    tokens = tuple(engine.id_to_token(token_id) for token_id in range(size))
    special = dict.fromkeys(CONTROL, TokenType.CONTROL) | {USER_DEFINED: TokenType.USER_DEFINED}
    kinds = [special.get(token, TokenType.NORMAL) for token in tokens]
    merges = json.loads(engine.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": tuple(" ".join(merge) for merge in merges),
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("</s>"),
        "tokenizer.ggml.eot_token_id": tokens.index("<|end|>"),
    }


@pytest.fixture(scope="session")
def tokenizer(values: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_metadata(Metadata(values))


@pytest.mark.long
@NUM_TEXTS
def test_ids_equal_the_engines(tokenizer: Tokenizer, engine: Engine, num_texts: int) -> None:
    texts = mixed_texts(num_texts)
    wrong = [text for text in texts if tokenizer.encode(text, add_bos=False) != engine.encode(text).ids]
    assert wrong == []


@pytest.mark.long
def test_a_text_comes_back_as_it_is(tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_no_text_becomes_a_control_token(tokenizer: Tokenizer, texts: Sequence[str]) -> None:
    control_ids = {tokenizer.bos_id, *tokenizer.eos_ids}
    assert len(control_ids) == 3
    for text in [*texts, "".join(CONTROL)]:
        assert control_ids.isdisjoint(tokenizer.encode(text, add_bos=False))


BAD_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown family": (
        {"pre": "qwen7"},
        r"pre is 'qwen7', not a family known here \(like 'qwen2' or 'qwen35'\)\. "
        "Take a newer GGUF file of the same model, or its Hugging Face folder",
    ),
    "nothing like a family": (
        {"pre": "!" * 10_000},
        r"pre is '!{59}..., not a family known here\. Take",
    ),
    "no cut": ({"pre": None}, r"pre is missing, .*\. Take a newer GGUF file"),
    "no merges": ({"merges": None}, "merges is missing"),
    "merge of no token": ({"merges": ("q \u0100",)}, "merges joins 'q' and '\u0100'"),
    "merge of one part": ({"merges": ("the",)}, "merges joins 'the' and ''"),
    "too few bytes": (
        {"tokens": ("a",), "token_type": np.ones(1, np.int32)},
        "tokens lacks a token for some bytes of plain text",
    ),
}


@pytest.mark.parametrize(("changes", "message"), BAD_VALUES.values(), ids=BAD_VALUES.keys())
def test_a_broken_vocabulary_is_refused_by_its_key(
    values: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    without_ids = {key: value for key, value in values.items() if not key.endswith("_id")}
    changed = without_ids | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(ModelFileError, match=rf"tokenizer\.ggml\.{message}"):
        Tokenizer.from_metadata(Metadata({key: value for key, value in changed.items() if value is not None}))


def damaged(values: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The metadata with one thing wrong, or right in a strange way."""
    tokens, merges = list(values["tokenizer.ggml.tokens"]), list(values["tokenizer.ggml.merges"])
    kinds, merge = values["tokenizer.ggml.token_type"].copy(), rng.randrange(len(merges))
    token_id = rng.randrange(len(tokens))
    kinds[token_id] = rng.choice(kinds if rng.random() < 0.3 else [1, 2, 3, 4, 5, 6, 0, 7])
    match rng.randrange(6):
        case 0:
            tokens[token_id] = rng.choice((*tokens, "", "x" * 1_024, "x" * 1_025, "\u0000", "🦙", "a b"))
        case 1:
            merges[merge] = rng.choice(("", " ", "  ", "a", "a  b", " a", "x" * 100_000, "</ s>", merges[0]))
        case 2:
            merges = merges[:merge]
        case 3:
            rng.shuffle(merges)
        case 4:
            key = rng.choice(sorted(values))
            wrong = (None, 3, -1, 2**40, "text", True, ("a",), np.ones(3, np.int32), np.ones(3, np.float32))
            return values | {key: rng.choice(wrong)}
    return values | {
        "tokenizer.ggml.tokens": tuple(tokens),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": tuple(merges),
    }


@pytest.mark.long
@pytest.mark.parametrize("num_files", [200, pytest.param(2_000, marks=pytest.mark.slow)])
def test_a_damaged_vocabulary_is_refused_or_makes_no_control_token(
    values: dict[str, Any], texts: Sequence[str], num_files: int
) -> None:
    rng, errors = random.Random(0), list[str]()
    for _ in range(num_files):
        changed = {key: value for key, value in damaged(values, rng).items() if value is not None}
        try:
            tokenizer = Tokenizer.from_metadata(Metadata(changed, "my.gguf"))
        except ModelFileError as error:
            errors.append(str(error))
            continue
        for text in (*rng.sample(texts, 10), *CONTROL):
            ids = tokenizer.encode(text, add_bos=False)
            assert not [token_id for token_id in ids if not tokenizer.pieces[token_id]]
            assert len(ids) <= len(text.encode())
    assert num_files / 4 < len(errors) < num_files * 3 / 4
    assert all(error.startswith("my.gguf: tokenizer.ggml.") and len(error) < 400 for error in errors)


def test_a_merge_of_a_token_that_no_text_becomes_is_left_out(values: dict[str, Any]) -> None:
    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"].copy()
    left, right = next(merge.split(" ") for merge in values["tokenizer.ggml.merges"] if merge.isascii())
    kinds[tokens.index(left + right)] = TokenType.UNUSED
    tokenizer = Tokenizer.from_metadata(Metadata({**values, "tokenizer.ggml.token_type": kinds}))
    assert tokenizer.encode(left + right, add_bos=False) == [tokens.index(left), tokens.index(right)]
