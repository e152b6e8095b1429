"""A digest of a model's weights tells them from all others, and tells nothing else."""

from pathlib import Path

import pytest

from llama_herd.model.files.open_model import open_model
from llama_herd.model.files.tensor_file import TensorInfo
from tests.model.tiny_folder import write_tiny_folder
from tests.tiny import write_tiny_gguf


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    return write_tiny_gguf(tmp_path / "tiny.gguf")


@pytest.fixture(params=["file", "folder"])
def model(request: pytest.FixtureRequest, gguf_file: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A model, and the file that holds its weights."""
    if request.param == "file":
        return gguf_file, gguf_file
    folder = write_tiny_folder(tmp_path / "tiny", gguf_file)
    return folder, folder / "model.safetensors"


def digest_of(path: Path) -> str:
    with open_model(path) as model:
        return model.weights_digest()


def turn_bits(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def last_byte(info: TensorInfo) -> int:
    return info.offset + info.num_bytes - 1


def middle_row(info: TensorInfo) -> int:
    return info.offset + info.num_rows // 2 * (info.num_bytes // info.num_rows)


def test_every_weight_counts_in_its_first_middle_and_last_row(model: tuple[Path, Path]) -> None:
    path, file = model
    with open_model(path) as opened:
        tensors = list(opened.tensors)
    digests = {digest_of(path)}
    places = [place for info in tensors for place in (info.offset, middle_row(info) + 1, last_byte(info))]
    for place in places:
        turn_bits(file, place)
        digests.add(digest_of(path))
        turn_bits(file, place)
    assert len(digests) == 1 + len(places)


def test_parts_and_what_else_the_files_say_do_not_count(gguf_file: Path, tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "parts.gguf", part_tensors=8)
    talks = write_tiny_gguf(tmp_path / "talks.gguf", chat_template="{{ messages }}", sampling={"temp": 0.5})
    others = tmp_path / "parts-00002-of-00003.gguf", talks
    assert {digest_of(path) for path in others} == {digest_of(gguf_file)}


def test_the_type_of_a_weight_counts(gguf_file: Path, tmp_path: Path) -> None:
    assert digest_of(write_tiny_gguf(tmp_path / "half.gguf", type="F16")) != digest_of(gguf_file)
