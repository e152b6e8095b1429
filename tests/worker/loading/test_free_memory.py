"""What a worker may take of the memory of its machine or container."""

from pathlib import Path

import pytest

from llama_herd.worker.loading.machine import free_bytes, machine_bytes, own_groups, total_bytes

GIB = 1 << 30


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    """A machine of 8 GiB that has cached files in half of them."""
    path = tmp_path / "meminfo"
    path.write_text("MemTotal: 8388608 kB\nMemFree: 102400 kB\nMemAvailable: 4194304 kB\n")
    return path


def container(folder: Path, limit: str) -> Path:
    """A cgroup that takes 1 GiB, as much again for files that it has read."""
    folder.mkdir()
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{2 * GIB}\n")
    (folder / "memory.stat").write_text(f"anon {GIB}\nfile {GIB}\n")
    return folder


def test_what_caches_files_counts_as_free(meminfo: Path, tmp_path: Path) -> None:
    assert machine_bytes(meminfo, [tmp_path / "no cgroup"]) == 4 * GIB


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 4 * GIB), (str(3 * GIB), 2 * GIB), (str(64 * GIB), 4 * GIB), ("4096", 0)]
)
def test_a_container_has_what_its_limit_leaves(
    meminfo: Path, tmp_path: Path, limit: str, expected: int
) -> None:
    assert machine_bytes(meminfo, [container(tmp_path / "cgroup", limit)]) == expected


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 8 * GIB), (str(3 * GIB), 3 * GIB), (str(64 * GIB), 8 * GIB)]
)
def test_all_memory_is_that_of_the_container_if_it_has_a_limit(
    meminfo: Path, tmp_path: Path, limit: str, expected: int
) -> None:
    assert total_bytes("cpu", meminfo, [container(tmp_path / "cgroup", limit)]) == expected


@pytest.mark.parametrize(("own", "above"), [("6442450944", "max"), ("max", "6442450944")])
def test_a_service_has_the_least_that_it_and_those_above_it_may_have(
    meminfo: Path, tmp_path: Path, own: str, above: str
) -> None:
    root = container(tmp_path / "cgroup", "max")
    container(root / "system.slice", above)
    container(root / "system.slice" / "herd.service", own)
    (tmp_path / "own").write_text("1:name=systemd:/elsewhere\n0::/system.slice/herd.service\n")
    groups = own_groups(root, tmp_path / "own")
    assert [one.name for one in groups] == ["herd.service", "system.slice", "cgroup"]
    assert total_bytes("cpu", meminfo, groups) == 6 * GIB
    assert machine_bytes(meminfo, groups) == 4 * GIB
    (root / "system.slice" / "memory.max").write_text(f"{2 * GIB}\n")
    assert machine_bytes(meminfo, groups) == GIB


@pytest.mark.parametrize("said", ["0::/\n", "0::/../../other\n", "9:memory:/a\n", None])
def test_a_container_is_the_topmost_group_that_it_sees(tmp_path: Path, said: str | None) -> None:
    if said is not None:
        (tmp_path / "own").write_text(said)
    assert own_groups(tmp_path / "cgroup", tmp_path / "own")[-1] == tmp_path / "cgroup"


def test_this_machine_has_some() -> None:
    assert free_bytes("cpu") > 0
