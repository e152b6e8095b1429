"""A model that gguf-split has cut into parts opens by any of them."""

import random
import shutil
from pathlib import Path

import gguf
import pytest

from llama_herd.errors import ModelFileError
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.worker.settings import WorkerSettings
from tests.model.files.test_gguf_header import damaged
from tests.model.open_files import open_files
from tests.tiny import random_weights, tiny_config, write_tiny_gguf


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    write_tiny_gguf(tmp_path / "tiny.gguf", type="Q8_0", part_tensors=8)
    found = sorted(tmp_path.glob("tiny-*"))
    assert [path.name for path in found] == [f"tiny-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    return found


def test_any_part_opens_the_whole_model(parts: list[Path], tmp_path: Path) -> None:
    whole = write_tiny_gguf(tmp_path / "whole.gguf", type="Q8_0")
    names = list(random_weights(tiny_config(), seed=0, tied=False))
    for part in parts:
        with GGUFModel.open(part) as model, GGUFModel.open(whole) as other:
            assert (model.config, model.num_bytes) == (other.config, other.num_bytes)
            assert model.read_tokenizer() is not None
            assert {info.name for info in model.tensors} == set(names)
            assert all(model.weight(name).blocks.equal(other.weight(name).blocks) for name in names)
            assert set(parts) <= open_files()
        assert not open_files() & set(parts)


def test_all_parts_are_served_under_the_name_of_the_whole(parts: list[Path]) -> None:
    assert {WorkerSettings.read(model=part).served_model for part in parts} == {"tiny"}


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_a_missing_part_is_named(parts: list[Path], missing: int) -> None:
    parts[missing].unlink()
    with pytest.raises(ModelFileError, match=rf"{parts[missing].name}: missing, .* one of 3 parts"):
        GGUFModel.open(parts[missing - 1])
    assert not open_files() & set(parts)


def test_a_part_under_another_name_is_refused_with_the_right_one(parts: list[Path], tmp_path: Path) -> None:
    other = parts[1].rename(tmp_path / "model.gguf")
    with pytest.raises(ModelFileError, match=r"one of 3 parts .* must end in -00002-of-00003\.gguf"):
        GGUFModel.open(other)


def test_a_part_in_the_place_of_another_is_refused(parts: list[Path]) -> None:
    shutil.copy(parts[2], parts[1])
    with pytest.raises(ModelFileError, match=r"00002-of-00003\.gguf: split\.no is 2 of 3, 1 of 3 by"):
        GGUFModel.open(parts[0])


def test_a_part_of_another_model_is_refused(parts: list[Path], tmp_path: Path) -> None:
    """It has tensors that are there already, or their number is not the stated one."""
    (tmp_path / "other").mkdir()
    write_tiny_gguf(tmp_path / "other" / "tiny.gguf", type="Q8_0", part_tensors=8, tied=True)
    shutil.copy(tmp_path / "other" / parts[2].name, parts[2])
    with pytest.raises(ModelFileError, match=r"split\.tensors\.count is 21, but its 3 parts hold 20 tensors"):
        GGUFModel.open(parts[0])


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    for number in (0, 1):
        writer = gguf.GGUFWriter(tmp_path / f"m-0000{number + 1}-of-00002.gguf", "llama")
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", 1)
        writer.add_tensor("w", random_weights(tiny_config(), 0, tied=True)["output_norm.weight"].numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    with pytest.raises(ModelFileError, match=r"00002\.gguf: tensor 'w' is in m-00001-of-00002\.gguf as well"):
        GGUFModel.open(tmp_path / "m-00001-of-00002.gguf")


@pytest.mark.long
@pytest.mark.parametrize("num_files", [200, pytest.param(2_000, marks=pytest.mark.slow)])
def test_random_damage_of_a_part_raises_nothing_but_model_file_errors(
    parts: list[Path], num_files: int
) -> None:
    rng = random.Random(0)
    contents = [path.read_bytes() for path in parts]
    num_refused = 0
    for _ in range(num_files):
        which = rng.randrange(3)
        parts[which].write_bytes(damaged(contents[which], header_bytes=400, rng=rng))
        try:
            GGUFModel.open(parts[rng.randrange(3)]).close()
        except ModelFileError:
            num_refused += 1
        parts[which].write_bytes(contents[which])
    assert num_refused > num_files // 2
    assert not open_files() & set(parts)
