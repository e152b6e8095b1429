"""Native kernels are built once, by several processes at a time if need be, or it is said why not.

What is damaged is never loaded, and compiled anew.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from llama_herd.errors import BadInput
from llama_herd.model.kernels import build as module
from llama_herd.model.kernels.build import build
from llama_herd.model.kernels.instruction_set import AVX2, INSTRUCTION_SETS
from llama_herd.model.kernels.native import Kernels, load_kernels
from llama_herd.model.kernels.unloaded import UnloadedKernels, built_kernels
from tests.model.native_library import find

pytestmark = pytest.mark.skipif(bool(AVX2.complaint), reason=AVX2.complaint)

BUILD = (
    "import sys; from pathlib import Path; from llama_herd.model.kernels import build; "
    "build.SOURCES = Path(sys.argv[1]); "
    "print(*(one.path.stat().st_ino for one in build.build(Path(sys.argv[2]))))"
)


def test_what_is_built_is_built_once(kernels_folder: Path) -> None:
    paths = [built.path for built in build(kernels_folder)]
    before = [path.stat().st_mtime_ns for path in paths]
    assert [built.path.stat().st_mtime_ns for built in build(kernels_folder)] == before
    assert [find(kernels_folder, set) for set in INSTRUCTION_SETS] == paths


@pytest.mark.long
@pytest.mark.usefixtures("kernels_folder")  # skips without a compiler
def test_processes_that_build_at_once_compile_once(tmp_path: Path) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "library.cpp").write_text('#include <algorithm>\nextern "C" int one() { return 1; }\n')
    command = [sys.executable, "-c", BUILD, str(sources), str(tmp_path / "built")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    found = [process.communicate()[0].split() for process in processes]
    assert found == found[:1] * 3
    assert len(found[0]) == len(INSTRUCTION_SETS)


@pytest.mark.usefixtures("kernels_folder")
def test_what_a_killed_build_leaves_the_next_one_removes(tmp_path: Path) -> None:
    sources, pause, temporary = (tmp_path / name for name in ("sources", "pause", "temporary"))
    sources.mkdir()
    temporary.mkdir()
    os.mkfifo(pause)
    (sources / "library.cpp").write_text(f'#include "{pause}"\n')
    command = [sys.executable, "-c", BUILD, str(sources), str(tmp_path / "built")]
    env = {**os.environ, "TMPDIR": str(temporary)}
    process = subprocess.Popen(command, env=env, start_new_session=True)
    with pause.open("w"):  # opens once the compiler reads
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    pause.unlink()
    pause.write_text('extern "C" int one() { return 1; }\n')
    subprocess.run(command, env=env, check=True)
    (place,) = (tmp_path / "built").iterdir()
    assert [path.name for path in place.iterdir() if path.suffix != ".so"] == ["lock"]
    assert list(temporary.iterdir()) == []


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


@pytest.fixture
def avx2_alone(kernels_folder: Path, tmp_path: Path) -> Path:
    """A library in a folder of its own: `tmp_path`."""
    source = find(kernels_folder, AVX2)
    assert source is not None
    place = tmp_path / module._source_key()
    place.mkdir(mode=0o755)
    return Path(shutil.copy(source, place))


def test_a_library_that_others_may_write_is_not_loaded(avx2_alone: Path, tmp_path: Path) -> None:
    avx2_alone.chmod(0o757)
    note = f"none: {avx2_alone} can be written by everybody. Fix: herd kernels build"
    assert load_kernels(tmp_path).note == built_kernels(tmp_path).note == note
    avx2_alone.chmod(0o755)
    assert "Q4_0" in load_kernels(tmp_path).note


def test_who_only_plans_takes_the_kernels_that_are_loaded(kernels_folder: Path, tmp_path: Path) -> None:
    for folder in (kernels_folder, tmp_path):
        planned, loaded = built_kernels(folder), load_kernels(folder)
        assert (planned.types, planned.tile_rows) == (loaded.types, loaded.tile_rows)
        assert planned.note.startswith(loaded.note.partition(",")[0])


@pytest.mark.parametrize("find_them", [load_kernels, built_kernels])
def test_a_folder_that_cannot_be_looked_into_is_told_with_what_names_another(
    find_them: Callable[[Path], Kernels | UnloadedKernels], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / ("n" * 300)):
        note = find_them(folder).note
        assert str(folder) in note
        assert note.endswith(". Fix: name a folder of your own in HERD_KERNELS_DIR")


@pytest.mark.parametrize("damage", ["cut off", "altered", "empty", "a link"])
def test_a_damaged_library_is_not_loaded(avx2_alone: Path, tmp_path: Path, damage: str) -> None:
    content = bytearray(avx2_alone.read_bytes())
    if damage == "a link":
        avx2_alone.rename(tmp_path / "elsewhere.so")
        avx2_alone.symlink_to(tmp_path / "elsewhere.so")
    elif damage == "altered":
        content[len(content) // 2] ^= 1
        avx2_alone.write_bytes(content)
    else:
        avx2_alone.write_bytes(content[: len(content) // 2] if damage == "cut off" else b"")
    complaint = "is no file" if damage == "a link" else "is damaged"
    code = (
        "import sys; from pathlib import Path; from llama_herd.model.kernels.unloaded import built_kernels; "
    )
    code += "print(built_kernels(Path(sys.argv[1])).note)"  # to run it may end a process
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"none: {avx2_alone} {complaint}. Fix: herd kernels build\n")
    assert find(tmp_path, AVX2) is None


def test_a_whole_library_is_taken_in_place_of_a_newer_damaged_one(avx2_alone: Path, tmp_path: Path) -> None:
    digest = avx2_alone.name.split(".")[2]
    newer = avx2_alone.with_name(f"avx2.newer.{digest}.so")
    newer.write_bytes(b"half")
    note = load_kernels(tmp_path).note
    assert note.startswith("avx2 for ")
    assert note.endswith(f"; {newer} is damaged. Fix: herd kernels build")
    assert find(tmp_path, AVX2) == avx2_alone


@pytest.fixture
def small_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels_folder: Path) -> None:
    """What is compiled at once; skips without a compiler."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "library.cpp").write_text('extern "C" int one() { return 1; }\n')
    monkeypatch.setattr(module, "SOURCES", sources)


@pytest.mark.long
@pytest.mark.usefixtures("small_sources")
def test_what_is_damaged_is_compiled_anew(tmp_path: Path) -> None:
    folder = tmp_path / "built"
    whole = [built.path for built in build(folder)]
    contents = [path.read_bytes() for path in whole]
    whole[0].write_bytes(b"")
    whole[1].write_bytes(contents[1][:-100])
    assert [built.removed for built in build(folder)] == [
        *((f"{path} is damaged",) for path in whole[:2]),
        *(() for _ in whole[2:]),
    ]
    assert [path.read_bytes() for path in whole] == contents
    assert not any(built.removed for built in build(folder))


@pytest.mark.long
@pytest.mark.usefixtures("small_sources")
def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("all that they have")
    folder = tmp_path / "built"
    lock, library = build(folder)[0].path.with_name("lock"), build(folder)[1].path
    library.unlink()
    library.symlink_to(theirs)
    assert build(folder)[1].removed == (f"{library} is no file",)
    assert not library.is_symlink()
    lock.unlink()
    lock.symlink_to(theirs)
    with pytest.raises(BadInput, match=r"cannot be kept in .* symbolic links: .*/lock"):
        build(folder)
    assert theirs.read_text() == "all that they have"


@pytest.mark.usefixtures("kernels_folder")
def test_nothing_is_built_where_others_may_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(BadInput, match=f"others can change {tmp_path}, .* Fix: chmod go-w {tmp_path}, or"):
        build(tmp_path / "mine" / "kernels")
    assert list(tmp_path.iterdir()) == []
    note = load_kernels(tmp_path).note
    assert note.startswith(f"none: others can change {tmp_path}")
    assert built_kernels(tmp_path).note == note
