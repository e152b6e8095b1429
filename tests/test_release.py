"""What a release states: its version, the protocol that it speaks, and the repository it is from."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from llama_herd.tasks.protocol.events import Token
from llama_herd.tasks.protocol.job import GenerationJob

ROOT = Path(__file__).parent.parent
REPOSITORY = "https://forge.example/herds/llama-herd"


def project_of(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


PROJECT = project_of(ROOT)
TAG = f"v{PROJECT['version']}"


def version_row() -> list[str]:
    """Of the table of versions, what it says of this one."""
    minor = PROJECT["version"].rpartition(".")[0]
    page = (ROOT / "docs" / "versions.md").read_text()
    (row,) = re.findall(rf"^\| {re.escape(minor)} \| (.+) \|$", page, re.M)
    return str(row).split(" | ")


def test_the_image_has_the_packages_version() -> None:
    assert f'image.version="{PROJECT["version"]}"' in (ROOT / "Dockerfile").read_text()


def test_the_table_of_versions_has_the_protocol_that_jobs_and_events_speak() -> None:
    spoken = {GenerationJob.model_fields["v"].default, Token.model_fields["v"].default}
    assert {int(version_row()[0])} == spoken


def test_the_table_of_versions_has_what_the_package_asks_for() -> None:
    _, python, celery, kombu, *_ = version_row()
    asked = {re.split(r"[\[>]", need)[0]: need for need in PROJECT["optional-dependencies"]["celery"]}
    assert PROJECT["requires-python"] == f">={python.split()[0]}"
    for name, said in (("celery", celery), ("kombu", kombu)):
        found = re.search(r"worker: ([\d.]+) to (\d+)\.(\d+)", said)
        assert found is not None
        least, major, minor = found.groups()
        assert asked[name].endswith(f">={least},<{major}.{int(minor) + 1}")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("pyproject.toml", "README.md"):
        shutil.copy2(ROOT / name, tmp_path)
    return tmp_path


def name_repository(folder: Path, tag: str = TAG) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".github" / "name_repository.py"), REPOSITORY, tag]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_release_names_the_repository_that_builds_it(checkout: Path) -> None:
    done = name_repository(checkout)
    assert done.returncode == 0, done.stderr
    urls = project_of(checkout)["urls"]
    assert urls["Homepage"] == REPOSITORY
    places = [url.partition(f"/blob/{TAG}/")[2] for url in urls.values()]
    assert all((ROOT / place).is_file() for place in places if place)


def test_its_readme_leads_into_the_repository_and_shows_its_pictures(checkout: Path) -> None:
    name_repository(checkout)
    goals = re.findall(r"(!?)\[[^]]*\]\(([^)#]+)[^)]*\)", (checkout / "README.md").read_text())
    assert {bool(mark) for mark, _ in goals} == {True, False}
    for mark, goal in goals:
        start = f"{REPOSITORY}/{'raw' if mark else 'blob'}/{TAG}/"
        assert goal.startswith(start), goal
        assert (ROOT / goal.removeprefix(start)).is_file()


def test_a_tag_of_another_version_is_refused(checkout: Path) -> None:
    before = (checkout / "pyproject.toml").read_text()
    done = name_repository(checkout, "v99.0")
    assert done.returncode != 0
    assert "has another version than v99.0. Fix:" in done.stderr
    assert (checkout / "pyproject.toml").read_text() == before


def test_addresses_are_added_once(checkout: Path) -> None:
    name_repository(checkout)
    assert "names its addresses. Fix:" in name_repository(checkout).stderr
