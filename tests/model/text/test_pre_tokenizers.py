"""With every name of a family a text's ids are llama.cpp's, or the model's own where those are others."""

import gzip
import json
import random
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import TokenType
from tokenizers import Regex
from tokenizers.pre_tokenizers import Sequence, Split

from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text import pre_tokenizers
from llama_herd.model.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.worker.engine.detokenizer import Detokenizer

pytestmark = pytest.mark.long

PATH = Path(__file__).with_name("reference_ids.json.gz")  # reference_ids.py makes it

#: One name of each family.
FAMILIES = {family: name for name, family in PRE_TOKENIZERS.items()}


@pytest.fixture(scope="session")
def reference() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress(PATH.read_bytes()))
    return content


@pytest.fixture(scope="session")
def checksums() -> dict[tuple[PreTokenizer, int], list[str]]:
    """Of the ids of so many texts, by family: names of one family share the object, and so the ids."""
    return {}


@pytest.fixture(scope="session")
def encoders(reference: dict[str, Any]) -> Callable[[str], Tokenizer]:
    """Gives the tokenizer of a name; made once."""
    return cache(partial(tokenizer, reference))


def tokenizer(reference: dict[str, Any], pre: str, **changes: Any) -> Tokenizer:
    tokens = (*reference["tokens"], "<begin>", "<finish>")
    kinds = [TokenType.NORMAL] * (len(tokens) - 2) + [TokenType.CONTROL] * 2
    values = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": np.array(kinds, np.int32),
        "merges": tuple(reference["merges"]),
        "bos_token_id": len(tokens) - 2,
        "eos_token_id": len(tokens) - 1,
        **changes,
    }
    return Tokenizer.from_metadata(
        Metadata({f"tokenizer.ggml.{key}": value for key, value in values.items()})
    )


def checksum(ids: list[int]) -> str:
    return f"{zlib.crc32(json.dumps(ids).encode()):08x}"


def test_every_name_has_its_reference(reference: dict[str, Any]) -> None:
    assert reference["names"].keys() == PRE_TOKENIZERS.keys()


# Any two families that differ do so in the first 25 texts.
@pytest.mark.parametrize("num_texts", [250, pytest.param(1_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_ids_equal_the_reference(
    reference: dict[str, Any],
    encoders: Callable[[str], Tokenizer],
    checksums: dict[tuple[PreTokenizer, int], list[str]],
    pre: str,
    num_texts: int,
) -> None:
    texts, named, family = reference["texts"][:num_texts], reference["names"][pre], PRE_TOKENIZERS[pre]
    if (family, num_texts) not in checksums:
        encoder = encoders(FAMILIES[family])
        checksums[family, num_texts] = [checksum(encoder.encode(text, add_bos=False)) for text in texts]
    own = named["model's own"]
    expected = [
        own.get(str(index), named["llama.cpp"][8 * index : 8 * index + 8]) for index in range(len(texts))
    ]
    found = checksums[family, num_texts]
    assert [text for text, one, sum in zip(texts, found, expected, strict=True) if one != sum] == []


@pytest.mark.parametrize("pre", [name for family, name in FAMILIES.items() if not family.composes])
def test_a_text_comes_back_and_streams_as_it_is(
    reference: dict[str, Any], encoders: Callable[[str], Tokenizer], pre: str
) -> None:
    encoder = encoders(pre)
    for text in reference["texts"][:100]:
        ids = encoder.encode(text, add_bos=False)
        assert encoder.decode(ids) == text
        writer = Detokenizer(encoder.pieces)
        assert "".join([*map(writer.write, ids), writer.finish()]) == text


def test_a_family_says_whether_bos_comes_first_unless_the_file_does(reference: dict[str, Any]) -> None:
    assert tokenizer(reference, "llama-bpe").adds_bos
    assert not tokenizer(reference, "qwen2").adds_bos
    assert tokenizer(reference, "qwen2", add_bos_token=True).adds_bos
    assert not tokenizer(reference, "llama-bpe", add_bos_token=False).adds_bos


#: Patterns that stand in for those of models, which look at the same part of a text again and again.
ORIGINALS = {
    "JAIS2": (pre_tokenizers.JAIS2.replace(r"(?<![^\S\r\n])\s*", r"\s*"), None),
    "LAST_SPACES": (r"\s+$", r"[\r\n]"),
    "THREES": (r"(?=(\d{3})+(?!\d))", r"\p{Nd}+"),
    "CUTS_OF_THREES": (r"(?=(\d{3})+(?!\d))", r"\p{N}+"),
    "THREES_OF_WORD": (r"\d{1,3}(?=(?:\d{3})*\b)", None),
}


@pytest.mark.parametrize("num_texts", [1_000, pytest.param(5_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ORIGINALS)
def test_a_quick_pattern_cuts_as_the_original(name: str, num_texts: int) -> None:
    original, before = ORIGINALS[name]
    first = [Split(Regex(before), "isolated")] if before else []
    quick = Sequence([*first, Split(Regex(getattr(pre_tokenizers, name)), "isolated")])
    slow = Sequence([*first, Split(Regex(original), "isolated")])
    rng = random.Random(0)
    for _ in range(num_texts):
        text = "".join(rng.choices("0123٣½ab_ \t\n\r!\u3000漢" + "1" * 8 + " " * 5, k=rng.randint(1, 24)))
        assert quick.pre_tokenize_str(text) == slow.pre_tokenize_str(text), text
