"""What a hostile tokenizer.json is refused for, and that what is taken is quick on every text."""

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from tokenizers import Regex, pre_tokenizers

from llama_herd.errors import GenerationError, ModelFileError
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.pre_tokenizers import PATTERNS
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.text.tokenizer_engine import MAX_GROWTH, check_steps, no_panic
from llama_herd.model.text.tokenizer_json import JoinedText, TokenizerJson
from tests.model.tiny_folder import read_tokenizer

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
PLAIN = {"decoder": BYTE_LEVEL, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}

#: Those of models of the Llama family that are not known by heart.
SIMPLE_PATTERNS = (
    r"[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺ]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"[一-龥ࠀ-一가-퟿]+",
    r"[0-9][0-9][0-9]",
    r"\p{N}{1,3}",
    r" ?\p{L}+| ?\p{N}+|\s+",
)

HOSTILE_PATTERNS = (
    "(a+)+$",
    "(a|a)*b",
    "a?a?a?a?a?a?a?aaaaaaa",
    r"\s*\s*#",
    r"\s+$",
    r"(?<=a+)b",
    r"(a)\1+",
    "a{0,99}a{0,99}a{0,99}b",
    "((a{1000}){1000}){1000}",
    "[" + r"\p{L}" * 40,
    "a" * 1_000_000,
)


def split(regex: object) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}


def replace(pattern: object, content: object) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def normalizers(*steps: object) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": list(steps)}}


def nested(depth: int) -> dict[str, Any]:
    step: dict[str, Any] = {"type": "NFC"}
    for _ in range(depth):
        step = {"type": "Sequence", "normalizers": [step]}
    return {"normalizer": step}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a bomb": (normalizers(*[replace({"String": "a"}, "aa")] * 4), "makes a text up to 16 times as long"),
    "one long replacement": (normalizers(replace({"String": "a"}, "a" * 9)), "up to 9 times as long"),
    "an empty pattern": (normalizers(replace({"String": ""}, "b")), "pattern is empty"),
    "a pattern's pattern": (normalizers(replace({"Regex": "(a+)+$"}, "b")), "pattern: String is missing"),
    "a long prefix": (normalizers({"type": "Prepend", "prepend": "b" * 17}), "has 17 characters, limit 16"),
    "a map that panics": (
        normalizers({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "type is 'Precompiled', supported are NFC",
    ),
    "a type that is a list": ({"decoder": {"type": ["x"]}}, "decoder: type is of type list"),
    "an inner type that is an object": (
        {"decoder": {"type": "Sequence", "decoders": [{"type": {}}]}},
        "decoder: type is of type dict",
    ),
    "steps that are no list": ({"decoder": {"type": "Sequence", "decoders": 1}}, "decoders is of type int"),
    "a step that is no object": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [[]]}},
        "holds a list",
    ),
    "a part that is no object": ({"normalizer": "NFC"}, "normalizer holds a str"),
    "many steps": (normalizers(*[{"type": "NFC"}] * 17), "has over 16 steps"),
    "a second alphabet": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTE_LEVEL, BYTE_LEVEL]}},
        "has 2 steps of type ByteLevel, limit 1",
    ),
    "marked tokens": (
        {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "continuing_subword_prefix": "ä"}},
        "model.continuing_subword_prefix is not empty",
    ),
    "a model's type that is a list": ({"model": {"type": []}}, "model.type is \\[\\], only 'BPE'"),
    "a deep file": (nested(300), "nested more than 32 deep"),
    **{
        f"pattern {number}": (
            {"pre_tokenizer": split(regex)},
            "Regex may take forever on some texts: ",
        )
        for number, regex in enumerate(HOSTILE_PATTERNS)
    },
    "a pattern that is a list": ({"pre_tokenizer": split([])}, "Regex is of type list"),
}


@pytest.mark.parametrize(("parts", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_file_that_could_hold_a_worker_up_is_refused_by_name(
    tmp_path: Path, parts: dict[str, Any], words: str
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**PLAIN, **parts}))
    with pytest.raises(ModelFileError, match=words) as caught:
        read_tokenizer(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("num_chars", [1, 2, 3])
def test_a_replacement_may_be_as_many_times_as_long_as_all_together_may(num_chars: int) -> None:
    for num_more, is_taken in ((0, True), (1, False)):
        content = "b" * (MAX_GROWTH * num_chars + num_more)
        file = Metadata({**PLAIN, **normalizers(replace({"String": "a" * num_chars}, content))})
        with nullcontext() if is_taken else pytest.raises(ModelFileError, match="times as long"):
            check_steps(file)


def around(*items: object, ids: Sequence[int] = (0,)) -> dict[str, object]:
    """A template of these items: a number is a special token of `ids`."""
    single = [{"Sequence" if item == "A" else "SpecialToken": {"id": item, "type_id": 0}} for item in items]
    special = {"t": {"id": "t", "ids": [*ids], "tokens": ["t"] * len(ids)}}
    pair = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


@pytest.mark.parametrize(
    ("step", "complaint"),
    [
        ({"type": "TemplateProcessing"}, "cannot be read"),
        (around("none", "A"), "cannot be read"),
        (around("t"), "writes a text 0 times"),
        (around("A", "A"), "writes a text 2 times"),
        (around(*["t"] * 1_000, "A"), "puts 1000 tokens around a text, limit 32"),
        (around("t", "A", ids=[99]), "names the id 99, which is none of this vocabulary"),
    ],
)
def test_a_template_that_cannot_be_followed_adds_nothing_and_is_told(
    tmp_path: Path, step: object, complaint: str
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**PLAIN, "post_processor": step}))
    tokenizer = read_tokenizer(path)
    assert tokenizer.encode("a") == [0]
    assert [complaint in line for line in tokenizer.complaints] == [True]


@pytest.mark.parametrize(("num_rows", "ids"), [(2, [1, 0]), (1, [0])])
def test_a_template_puts_no_token_around_a_text_that_the_model_has_no_row_for(
    tmp_path: Path, num_rows: int, ids: list[int]
) -> None:
    model = {"type": "BPE", "vocab": {"a": 0, "t": 1}, "merges": []}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**PLAIN, "model": model, "post_processor": around("t", "A", ids=[1])}))
    tokenizer = Tokenizer.from_json(TokenizerJson.open(path, num_rows))
    assert tokenizer.encode("a") == ids
    is_told = any("names the id 1, which is none of this vocabulary" in one for one in tokenizer.complaints)
    assert is_told == (num_rows == 1)


def test_beside_a_control_token_texts_are_joined_by_the_same_merges() -> None:
    """Also where the vocabulary has the token, and merges of its own make it."""
    flags = {"lstrip": True, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    vocabulary = {"a": 0, "b": 1, "ab": 2, "<": 3, ">": 4, "<>": 5}
    file = Metadata(
        {
            **PLAIN,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": ["a b", "< >"]},
            "added_tokens": [{"id": 5, "content": "<>", **flags}],
        }
    )
    joined = JoinedText.where_needed(file, {"<>": 5})
    assert joined is not None
    assert joined.encode(["ab", 5, "ab<", 5, ">"]) == [2, 5, 2, 3, 5, 4]


def test_of_a_key_that_stands_twice_the_library_takes_what_was_checked(tmp_path: Path) -> None:
    steps = json.dumps(split(r"\s+")).replace('"Regex"', '"Regex": "(a+)+$", "Regex"')
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(PLAIN)[:-1] + f', "pre_tokenizer": {steps}}}')
    assert read_tokenizer(path).encode("a" * 30 + "b") == [0] * 30


@pytest.mark.long
@pytest.mark.parametrize("times", [500, pytest.param(20_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("regex", [*sorted(PATTERNS), *SIMPLE_PATTERNS])
def test_a_pattern_that_is_taken_is_quick_on_runs_of_any_character(regex: str, times: int) -> None:
    check_steps(Metadata({**PLAIN, "pre_tokenizer": split(regex)}))
    cutter = pre_tokenizers.Split(Regex(regex), "isolated")
    started_s = process_time()
    for run in (" ", "\n", "a", "A", "一", "1", "'", "#", "\r\n", "́", " a", "a ", "\t ", "Aa"):
        for end in ("", "x", "#", " ", "\n", "1"):
            cutter.pre_tokenize_str(run * times + end)
    assert process_time() - started_s < times / 2_000


@pytest.mark.parametrize("name", ["tokenizer_config.json", "chat_template.jinja"])
def test_the_files_beside_it_are_read_with_a_limit(tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(PLAIN))
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 34)
    with pytest.raises(ModelFileError, match=f"{name}: longer than the limit of"):
        _ = read_tokenizer(tmp_path / "tokenizer.json").chat_templates


@pytest.mark.long
def test_a_panic_of_the_library_becomes_an_error_and_other_ends_stay() -> None:
    with pytest.raises(KeyboardInterrupt), no_panic(GenerationError, "x", "y"):
        raise KeyboardInterrupt
    script = """
import json, sys
from unittest import mock
from llama_herd.errors import GenerationError, ModelFileError
from llama_herd.model.text import tokenizer_engine
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.tokenizer import Tokenizer
plain, split, charsmap = json.loads(sys.argv[1])
with mock.patch.object(tokenizer_engine, "check_steps"):
    engine = tokenizer_engine.load_engine(Metadata(plain | {"pre_tokenizer": split}))
    try:
        tokenizer_engine.load_engine(Metadata(plain | {"normalizer": charsmap}))
    except ModelFileError as error:
        print(error)
class Codec:
    def encode(self, text):
        return engine.encode(text).ids
try:
    Tokenizer(Codec(), None, frozenset(), False, None).encode("a" * 40 + "b")
except GenerationError as error:
    print(error)
"""
    given = [PLAIN, split("(a+)+$"), {"type": "Precompiled", "precompiled_charsmap": "AAAA"}]
    command = [sys.executable, "-c", script, json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "metadata: not a tokenizer. Fetch it again.",
        "tokenizer_error: prompt: the model's tokenizer fails on this text",
    ]
