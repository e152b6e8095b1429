"""Native kernels are built once, by several processes at a time if need be, or it is said why not."""

import subprocess
import sys
from pathlib import Path

import pytest

from llama_herd.errors import BadInput
from llama_herd.model.kernels import build as module
from llama_herd.model.kernels.build import build, find
from llama_herd.model.kernels.instruction_set import AVX2, INSTRUCTION_SETS
from llama_herd.model.kernels.native import load_kernels
from llama_herd.model.kernels.unloaded import built_kernels

pytestmark = pytest.mark.skipif(bool(AVX2.complaint), reason=AVX2.complaint)


def test_what_is_built_is_built_once(kernels_folder: Path) -> None:
    paths = build(kernels_folder)
    before = [path.stat().st_mtime_ns for path in paths]
    assert [path.stat().st_mtime_ns for path in build(kernels_folder)] == before
    assert [find(kernels_folder, set) for set in INSTRUCTION_SETS] == paths


@pytest.mark.long
@pytest.mark.usefixtures("kernels_folder")  # skips without a compiler
def test_processes_that_build_at_once_compile_once(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from llama_herd.model.kernels import build; "
        "build.SOURCES = Path(sys.argv[1]); "
        "print(*(path.stat().st_ino for path in build.build(Path(sys.argv[2]))))"
    )
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "library.cpp").write_text('#include <algorithm>\nextern "C" int one() { return 1; }\n')
    command = [sys.executable, "-c", code, str(sources), str(tmp_path / "built")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    found = [process.communicate()[0].split() for process in processes]
    assert found == found[:1] * 3
    assert len(found[0]) == len(INSTRUCTION_SETS)


def test_other_sources_have_other_libraries(kernels_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_source_key", lambda: "other")
    assert find(kernels_folder, AVX2) is None


def test_without_a_compiler_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMPILER", "no-such-compiler")
    with pytest.raises(BadInput, match=r"need the compiler no-such-compiler: .* apt install g\+\+"):
        build(tmp_path)
    assert load_kernels(tmp_path).note == f"none: not built in {tmp_path}. Fix: herd kernels build"


@pytest.mark.long
@pytest.mark.usefixtures("kernels_folder")
def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "library.cpp").write_text('extern "C" int one() { return two; }\n')
    monkeypatch.setattr(module, "SOURCES", sources)
    with pytest.raises(BadInput, match=r"(?s)g\+\+ failed on the kernels for amx:.*error: "):
        build(tmp_path / "built")
    assert list(tmp_path.rglob("*.so")) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, kernels_folder: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    with pytest.raises(BadInput, match=r"cannot be kept in .*file: .* Fix: HERD_KERNELS_DIR"):
        build(place)
    assert load_kernels(place).types == frozenset()


def test_a_library_that_others_may_write_is_not_loaded(kernels_folder: Path, tmp_path: Path) -> None:
    (source,) = kernels_folder.glob(f"{module._source_key()}/avx2.*.so")
    copy = tmp_path / module._source_key() / source.name
    copy.parent.mkdir(mode=0o755)
    copy.write_bytes(source.read_bytes())
    copy.chmod(0o777)
    kernels = load_kernels(tmp_path)
    assert kernels.types == frozenset()
    assert "Fix: chmod go-w" in kernels.note
    copy.chmod(0o755)
    assert "Q4_0" in load_kernels(tmp_path).note


def test_who_only_plans_takes_the_kernels_that_are_loaded(kernels_folder: Path, tmp_path: Path) -> None:
    for folder in (kernels_folder, tmp_path):
        planned, loaded = built_kernels(folder), load_kernels(folder)
        assert (planned.types, planned.tile_rows) == (loaded.types, loaded.tile_rows)
        assert planned.note.startswith(loaded.note.partition(",")[0])


def test_a_broken_library_leaves_the_plain_path(kernels_folder: Path, tmp_path: Path) -> None:
    (source,) = kernels_folder.glob(f"{module._source_key()}/avx2.*.so")
    broken = tmp_path / module._source_key() / source.name
    broken.parent.mkdir(mode=0o755)
    broken.write_bytes(source.read_bytes()[:100])
    broken.chmod(0o755)
    kernels = load_kernels(tmp_path)
    assert kernels.types == frozenset()
    assert kernels.note.startswith("none: ")
    assert built_kernels(tmp_path) == kernels
