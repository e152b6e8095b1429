"""Every row of the strict reader's table: a file that is wrong there is refused by name."""

import random
import struct
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as GGMLType, GGUFValueType as Value

from llama_herd.errors import ModelFileError
from llama_herd.model.files.gguf import GGUFFile
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.text.tokenizer import Tokenizer
from tests.model.raw_gguf import DATA, array, key, raw_gguf, string, tensor, u32, u64
from tests.python_memory import peak_bytes
from tests.tiny import WIDE, write_tiny_gguf

HUGE = 2**63
ALIGNMENT = "general.alignment"
GOOD_KEY = key("a", Value.UINT8, b"\1")
EMPTY_TEXT = key("b", Value.STRING, string(""))


def one_tensor(entry: bytes, data: bytes = DATA) -> bytes:
    return raw_gguf(tensors=(entry,), data=data)


def two_tensors(first: int, second: int, data: bytes = DATA * 2) -> bytes:
    return raw_gguf(tensors=(tensor("v", offset=first), tensor("w", offset=second)), data=data)


BAD_FILES = {
    # file, version, counts
    "empty": (b"", "an empty file"),
    "shorter than a header": (b"GGUF" + u32(3), "8 bytes long, .* at least 24"),
    "magic alone": (b"GGUF", "4 bytes long, .* at least 24"),
    "version 1": (raw_gguf(version=1), "version 1 .* 2 and 3 can. Take a newer file"),
    "version 4": (raw_gguf(version=4), "version 4 .* 2 and 3 can. Take an older file"),
    "big-endian": (
        b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        "big-endian .* gguf-convert-endian",
    ),
    "too many tensors": (raw_gguf(num_tensors=65_537), "tensor count at byte 8: 65537 .* 65536"),
    "too many keys": (raw_gguf(num_keys=4_097), "key count at byte 16: 4097 .* 4096"),
    "huge counts": (raw_gguf(num_tensors=2**64 - 1, num_keys=2**64 - 1), "tensor count"),
    "fewer keys than counted": (raw_gguf(GOOD_KEY, num_keys=2), "length of key at byte 38: needs 8 bytes, 0"),
    # keys
    "empty key": (raw_gguf(key("", Value.UINT8, b"\1")), "key at byte 24: is empty, 1 to 256"),
    "long key": (raw_gguf(key("k" * 257, Value.UINT8, b"\1")), "length of key .* 257 .* 256"),
    "key of no text": (raw_gguf(key(b"\xff", Value.UINT8, b"\1")), "key at byte 32: is not UTF-8"),
    "key past the end": (raw_gguf(u64(200) + b"abc"), "key at byte 32: needs 200 bytes, 3 are left"),
    "key twice": (raw_gguf(GOOD_KEY, GOOD_KEY), "key 'a' at byte 38: appears twice"),
    # values
    "unknown value type": (raw_gguf(key("a", 13, b"\1")), "'a' at byte 33: value type 13"),
    "boolean of 7": (raw_gguf(key("a", Value.BOOL, b"\7")), "'a' at byte 37: holds 7, a boolean is 0 or 1"),
    "NaN": (raw_gguf(key("a", Value.FLOAT32, struct.pack("<f", float("nan")))), "'a' .* NaN"),
    "infinity": (raw_gguf(key("a", Value.FLOAT64, struct.pack("<d", float("inf")))), "'a' .* infinity"),
    "value cut off": (raw_gguf(key("a", Value.UINT64, b"\1")), "'a' at byte 37: needs 8 bytes, 1 are left"),
    "long string": (raw_gguf(key("a", Value.STRING, u64(2**20 + 1))), "length of 'a' .* 1048577 .* 1048576"),
    "huge string": (raw_gguf(key("a", Value.STRING, u64(2**64 - 1))), "length of 'a' at byte 37"),
    "string past the end": (raw_gguf(key("a", Value.STRING, u64(9) + b"x")), "'a' .* needs 9 bytes, 1 are"),
    "string of no text": (raw_gguf(key("a", Value.STRING, string(b"ab\xc3"))), "'a' .* UTF-8 at its byte 2"),
    # arrays
    "nested array": (raw_gguf(array("a", Value.ARRAY, 1, u32(0) + u64(0))), "array 'a' .* value type 9"),
    "unknown item type": (raw_gguf(array("a", 99, 1, b"\1")), "array 'a' at byte 37: value type 99"),
    "long array": (raw_gguf(array("a", Value.UINT8, 2**20 + 1, b"")), "length of 'a' .* 1048577 .* 1048576"),
    "the 65-byte bomb": (raw_gguf(array("x" * 13, Value.UINT8, HUGE, bytes(4))), "array length of 'x+'"),
    "a bomb of numbers": (raw_gguf(array("x", Value.UINT32, 2**31, bytes(4))), "array length of 'x'"),
    "a bomb of booleans": (
        raw_gguf(array("x", Value.BOOL, 2**20, b"\1")),
        "needs 1048576 bytes, 1 are",
    ),
    "array past the end": (raw_gguf(array("a", Value.INT32, 5, u32(1))), "'a' .* needs 20 bytes, 4 are left"),
    "strings past the end": (raw_gguf(array("a", Value.STRING, 9, string("x"))), "'a' .* needs 72 bytes, 9"),
    "string item past the end": (raw_gguf(array("a", Value.STRING, 1, u64(5))), "'a' .* needs 5 bytes, 0"),
    "boolean item of 2": (raw_gguf(array("a", Value.BOOL, 3, b"\0\1\2")), "'a' at byte 49: holds 2"),
    "NaN item": (raw_gguf(array("a", Value.FLOAT32, 1, struct.pack("<f", float("nan")))), "'a' .* NaN"),
    # alignment
    "alignment 0": (raw_gguf(key(ALIGNMENT, Value.UINT32, u32(0))), "alignment at byte 53: 0 is not a power"),
    "alignment 48": (raw_gguf(key(ALIGNMENT, Value.UINT32, u32(48))), "alignment .* 48 .* 65536"),
    "alignment 2^31": (raw_gguf(key(ALIGNMENT, Value.UINT32, u32(2**31))), "alignment .* 2147483648 is not"),
    "alignment as INT32": (raw_gguf(key(ALIGNMENT, Value.INT32, u32(32))), "alignment .* type 5, UINT32"),
    "alignment as text": (raw_gguf(key(ALIGNMENT, Value.STRING, string("32"))), "alignment .* type 8"),
    # tensor table
    "empty tensor name": (one_tensor(tensor("")), "tensor name at byte 24: is empty, 1 to 128"),
    "long tensor name": (one_tensor(tensor("n" * 129)), "length of tensor name .* 129 .* 128"),
    "tensor name of no text": (one_tensor(tensor(b"\xc0")), "tensor name .* is not UTF-8"),
    "junk for a name": (one_tensor(tensor(b"\1" * 128, type=99)), r"'(\\x01)+.{,3}\.\.\..* type 99"),
    "junk for a key": (raw_gguf(key("\1" * 256, 99, b"")), r"'(\\x01)+.{,3}\.\.\..* value type 99"),
    "tensor twice": (raw_gguf(tensors=(tensor(), tensor()), data=DATA), "tensor name 'w' .* twice"),
    "no dimensions": (one_tensor(tensor(dims=())), "tensor 'w' .* 0 dimensions, 1 to 4"),
    "five dimensions": (one_tensor(tensor(dims=(2, 1, 1, 1, 4))), "tensor 'w' .* 5 dimensions, 1 to 4"),
    "huge number of dimensions": (one_tensor(tensor(num_dims=2**32 - 1)), "tensor 'w' .* 4294967295 dim"),
    "dimension 0": (one_tensor(tensor(dims=(8, 0))), r"tensor 'w' .* dimensions \[8, 0\]"),
    "huge dimension": (one_tensor(tensor(dims=(2**31 + 1,))), "dimension .* 2147483649 .* 2147483648"),
    "size that wraps": (one_tensor(tensor(dims=(2**31, 2**31, 2**31, 2**31))), "tensor 'w' ends at"),
    "unknown tensor type": (
        one_tensor(tensor(type=99)),
        "type 99, which is not known here. .* Q8_0",
    ),
    "negative tensor type": (one_tensor(tensor(type=2**32 - 1)), "tensor 'w' .* type 4294967295"),
    "type of old files": (
        one_tensor(tensor(type=31)),
        "'w' at byte 33 is of type Q4_0_4_4, .* Q8_0",
    ),
    "part of a block": (one_tensor(tensor(dims=(33,), type=GGMLType.Q8_0)), "tensor 'w' .* 33 .* Q8_0 .* 32"),
    # layout
    "unaligned offset": (one_tensor(tensor(offset=4)), "tensor 'w' .* offset 4, .* alignment 32"),
    "huge offset": (one_tensor(tensor(offset=2**64 - 32)), "tensor 'w' .* offset 18446744073709551584,"),
    "overlap": (two_tensors(0, 0), "tensor 'w' .* offset 0, expected 32"),
    "gap": (two_tensors(0, 64, DATA * 3), "tensor 'w' .* offset 64, expected 32"),
    "gap at the start": (two_tensors(32, 64, DATA * 3), "tensor 'v' .* offset 32, expected 0"),
    "data cut off": (one_tensor(tensor(), DATA[:-1]), "tensor 'w' ends at data byte 32 of 31"),
    "data missing": (one_tensor(tensor(), b""), "tensor 'w' ends at data byte 32 of 0"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_refused_by_the_name_of_its_field(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=f"bad.gguf: .*{message}") as caught:
        GGUFFile.open(path)
    assert len(str(caught.value).removeprefix(str(path))) < 250


@pytest.mark.parametrize("content", [content for content, _ in BAD_FILES.values()], ids=BAD_FILES.keys())
def test_a_bad_file_costs_no_more_than_its_size(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)

    def open_it() -> None:
        with pytest.raises(ModelFileError):
            GGUFFile.open(path)

    assert peak_bytes(open_it) < 3 * len(content) + 64_000


def test_the_parts_that_the_bad_files_are_made_of_are_good(tmp_path: Path) -> None:
    path = tmp_path / "good.gguf"
    tensors = (tensor("v"), tensor("w", offset=32))
    path.write_bytes(raw_gguf(GOOD_KEY, EMPTY_TEXT, tensors=tensors, data=DATA * 2 + DATA[:31]))
    with GGUFFile.open(path) as file:
        assert dict(file.metadata) == {"a": 1, "b": ""}
        assert bytes(file.rows("w")[:][0].tolist()) == DATA


def test_an_array_may_hold_infinity_as_scores_do(tmp_path: Path) -> None:
    path = tmp_path / "infinite.gguf"
    path.write_bytes(raw_gguf(array("a", Value.FLOAT32, 2, struct.pack("<ff", float("-inf"), 1.0))))
    with GGUFFile.open(path) as file:
        assert file.metadata.array("a", "f", 2).tolist() == [float("-inf"), 1.0]


def test_a_header_over_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "long.gguf"
    path.write_bytes(raw_gguf(key("a", Value.STRING, string("x" * 100))))
    monkeypatch.setattr("llama_herd.model.files.gguf.MAX_HEADER_BYTES", 99)
    with pytest.raises(ModelFileError, match="'a' at byte 45: needs 100 bytes, 54 are left"):
        GGUFFile.open(path)


def test_a_whole_tokenizer_json_may_stand_in_a_key_of_its_own(tmp_path: Path) -> None:
    """GGUF's description names the key. Those of Llama 3 have 9 MB."""
    path, text = tmp_path / "whole.gguf", "x" * (2**20 + 1)
    path.write_bytes(raw_gguf(key("tokenizer.huggingface.json", Value.STRING, string(text))))
    with GGUFFile.open(path) as file:
        assert file.metadata["tokenizer.huggingface.json"] == text


@pytest.mark.long
@pytest.mark.parametrize("num_files", [200, pytest.param(2_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("type", ["F32", "Q4_K Q6_K IQ2_XXS"])
def test_random_damage_raises_nothing_but_model_file_errors(
    tmp_path: Path, type: str, num_files: int
) -> None:
    shape = WIDE if "K" in type else {}
    good = write_tiny_gguf(tmp_path / "good.gguf", type=type, num_layers=1, **shape).read_bytes()
    header_bytes = len(good) - GGUFModel.open(tmp_path / "good.gguf").num_bytes
    path, rng, messages = tmp_path / "damaged.gguf", random.Random(0), []
    for _ in range(num_files):
        path.write_bytes(damaged(good, header_bytes, rng))
        try:
            with GGUFModel.open(path) as model:
                Tokenizer.from_metadata(model.metadata)
        except ModelFileError as error:
            messages.append(str(error))
    assert len(messages) > num_files // 2
    assert all(message.startswith(f"{path}: ") for message in messages)


def damaged(good: bytes, header_bytes: int, rng: random.Random) -> bytes:
    """A file cut off somewhere, or with one to eight bytes of its header changed."""
    if rng.random() < 0.2:
        return good[: rng.randrange(len(good))]
    num_bytes = rng.choice((1, 2, 4, 8))
    damage = rng.choice((rng.randbytes(num_bytes), b"\xff" * num_bytes, bytes(num_bytes)))
    start = rng.randrange(header_bytes - num_bytes)
    return good[:start] + damage + good[start + num_bytes :]
