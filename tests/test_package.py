"""What an installation brings: a client no torch, a worker everything, nobody the tests."""

import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    skipped = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, source, symlinks=True, ignore=skipped)
    flags = ["-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *flags, str(source)], check=True)
    (path,) = folder.glob("llama_herd-*.whl")
    return zipfile.ZipFile(path)


def test_a_wheel_holds_the_three_packages_their_scripts_and_the_model(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for name in (
        "model/llama2.py",
        "model/bundled/tales.gguf",
        "tasks/client.py",
        "tasks/lua/emit.lua",
        "worker/pool.py",
    ):
        assert f"llama_herd/{name}" in names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"llama_herd"}


def test_a_client_needs_no_torch_and_a_worker_does(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    needs = Parser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist") or []
    torch = [need for need in needs if need.startswith("torch")]
    assert torch
    assert all("extra == 'worker'" in need.replace('"', "'") for need in torch)
    plain = [need for need in needs if "extra ==" not in need]
    assert not any(need.startswith(("torch", "numpy", "gguf", "tokenizers")) for need in plain)


#: Runs `herd` as it is where the extra `worker` is not installed.
CLIENT_ONLY = """
import sys
from llama_herd.worker.cli.requirements import WORKER_MODULES
sys.modules.update(dict.fromkeys(WORKER_MODULES))
from llama_herd.worker.cli import main
main()
"""


@pytest.mark.parametrize("command", [["worker"], ["demo"], ["generate", "--local", "hi"]], ids=" ".join)
def test_on_a_client_what_runs_a_model_says_what_to_install(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CLIENT_ONLY, *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install 'llama-herd[worker]'" in done.stderr
