"""The Dockerfile: what its build reads is there, and a changed line of source makes one layer anew."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import NamedTuple

import pytest

from llama_herd.model.kernels import build

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "Dockerfile").read_text()


class Stage(NamedTuple):
    """A stage of the build."""

    base: str
    steps: tuple[str, ...]

    @property
    def copied(self) -> list[str]:
        """What it copies of the repository."""
        words = (step.split()[1:-1] for step in self.steps if step.startswith("COPY "))
        return [word for found in words if not found[0].startswith("--from") for word in found]

    @property
    def bound(self) -> list[str]:
        """What it sees of the repository while a step runs."""
        return [name for step in self.steps for name in re.findall(r"type=bind,source=(\S+?),", step)]


def stages() -> dict[str, Stage]:
    """By name; the last one, which becomes the image, is ""."""
    plain = re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE).replace("\\\n", " ")
    found = {}
    for part in re.split(r"^(?=FROM )", plain, flags=re.MULTILINE)[1:]:
        first, *steps = filter(None, part.splitlines())
        base, _, name = first.removeprefix("FROM ").partition(" AS ")
        found[name] = Stage(base, tuple(steps))
    return found


STAGES = stages()


def test_what_the_build_reads_is_let_in_and_there_without_the_links() -> None:
    read = {name.rstrip("/") for stage in STAGES.values() for name in (*stage.copied, *stage.bound)}
    let_in = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.M))
    assert {name.split("/")[0] for name in read} == let_in
    assert all((ROOT / name).exists() and not (ROOT / name).is_symlink() for name in read)


def test_the_base_is_named_exactly() -> None:
    bases = {stage.base for stage in STAGES.values()} - STAGES.keys()
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-bookworm", bases.pop())


def test_a_changed_line_of_source_makes_no_layer_anew_but_the_last_one() -> None:
    image = STAGES[""]
    assert (image.base, image.copied, image.bound) == ("packages", [], [])
    assert STAGES["packages"].base == "python"
    assert not [name for name in ("python", "packages") for one in STAGES[name].copied if one]
    assert STAGES["packages"].bound == ["constraints.txt", "constraints.txt", "pyproject.toml"]
    layers = [step for step in image.steps if step.startswith(("RUN", "COPY"))]
    kernels, ours = layers
    assert kernels.startswith("COPY --from=kernels ")
    assert ours.startswith("RUN --mount=type=bind,from=wheel,")
    assert "--no-deps" in ours
    assert "--no-index" in ours


def test_torch_is_a_layer_of_its_own_before_the_other_packages() -> None:
    torch, _, others = (step for step in STAGES["packages"].steps if step.startswith("RUN"))
    assert torch.endswith(" torch")
    assert "[worker,gateway]" in others
    for step in (torch, others):
        assert "--mount=type=cache,target=/root/.cache/pip" in step


def test_the_image_has_no_health_check_which_would_be_wrong_for_some_command() -> None:
    assert not [step for stage in STAGES.values() for step in stage.steps if step.startswith("HEALTHCHECK")]


def test_the_image_says_what_it_is() -> None:
    own = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="(.*?)"', TEXT))
    assert labels == {
        "title": own["name"],
        "description": own["description"],
        "version": own["version"],
        "licenses": own["license"],
    }


def test_the_kernels_are_built_of_their_own_sources_by_a_bare_python(tmp_path: Path) -> None:
    """By the files that the stage copies, without any package; the sources are those of the whole tree.

    And what it leaves is for every user.
    """
    for step in STAGES["kernels"].steps:
        if step.startswith("COPY "):
            *names, place = step.split()[1:]
            folder = tmp_path / place.removeprefix("/build/")
            folder.mkdir(parents=True, exist_ok=True)
            for name in names:
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, folder, dirs_exist_ok=True)
                else:
                    shutil.copy(ROOT / name, folder)
    run = next(step for step in STAGES["kernels"].steps if "python -c" in step)
    (code,) = re.findall(r'python -c "(.+?)"', run)
    made = "(path := place / set.name).touch() or own.Built(path)"
    fake = f"import llama_herd.model.kernels.build as own; own._built = lambda place, set, _: {made}"
    (tmp_path / "g++").write_text("#!/bin/sh\n")
    (tmp_path / "g++").chmod(0o755)
    command = [sys.executable, "-S", "-c", f"{fake}; {code.replace('/kernels', f'{tmp_path}/kernels')}"]
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    env = {"PATH": path, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {Path(word).parent.name for word in done.stdout.split()} == {build._source_key()}
    (copy,) = re.findall(r"\| (xargs .+) /out$", run)
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(["bash", "-c", f"{copy} {out}"], input=done.stdout, cwd=out, text=True, check=True)
    (copied,) = out.rglob(build._source_key())
    assert [one.stat().st_mode & 0o777 for one in (copied, copied.parent)] == [0o755] * 2  # for its user, too


@pytest.mark.program
@pytest.mark.timeout(300)
def test_a_package_without_code_asks_for_all_that_ours_asks_for(tmp_path: Path) -> None:
    """As the stage of the packages makes it; and the whole one stays small."""
    empty, whole = tmp_path / "empty", tmp_path / "whole"
    for folder in (empty, whole):
        (folder / "src").mkdir(parents=True)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, folder)
    for name in ("README.md", "LICENSE"):
        (empty / name).write_text("")
    shutil.copytree(
        ROOT / "src", whole / "src", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
    )
    asked = []
    for folder in (empty, whole):
        command = [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "-q",
            "--no-deps",
            "--wheel-dir",
            str(folder),
            str(folder),
        ]
        subprocess.run(command, check=True, capture_output=True)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            (name,) = (one for one in packed.namelist() if one.endswith("/METADATA"))
            asked.append(message_from_bytes(packed.read(name)).get_all("Requires-Dist"))
            num_bytes = sum(one.file_size for one in packed.infolist())
    assert asked[0] == asked[1]
    assert asked[0]
    assert num_bytes < 12_000_000
