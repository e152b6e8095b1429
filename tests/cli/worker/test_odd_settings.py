"""Paths and routes that cannot be are refused by `herd worker` and `herd gateway` in one line, at once."""

import re
from pathlib import Path

import pytest

from llama_herd.errors import BadInput, SettingsError
from llama_herd.tasks.gateway.context import storage_of
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.worker.settings import WorkerSettings
from tests.cli.herd_command import COMMAND, environment, invoke
from tests.local.forked_python import run_forked
from tests.tiny import write_tiny_gguf

#: Nobody listens there: a setting that is wrong is told before Redis is asked.
NO_REDIS = "redis://127.0.0.1:1/0"

FILES = ("file", "file/below", "file/below/it", "/dev/null", "n" * 300, "loop/x")
ODD = {
    "HERD_MODEL": ("", " ", "m" * 5000, "a\nb.gguf", "a\x1b[2J.gguf", "\udcff"),
    "HERD_KERNELS_DIR": (*FILES, "k/" * 3000, "a\nb"),
    "HERD_GATEWAY_FILES": (*FILES, "g/" * 3000, "a\nb"),
    "HERD_LINK_ROUTES": ("shop", "=shop", "shop.*=", "a=b=c", "a=q," * 2000, "a=q, b=q, a =r"),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no model")
    (tmp_path / "loop").symlink_to("loop")


@pytest.mark.parametrize("device", ["cuda", "gpu", "cuda:0\n"])
def test_a_device_that_is_none_is_told_in_words(device: str) -> None:
    with pytest.raises(SettingsError, match=r"must be auto, cpu, or cuda:N .* such as cuda:0$"):
        WorkerSettings.read(device=device)


@pytest.mark.parametrize(("variable", "odd"), [(name, odd) for name, some in ODD.items() for odd in some])
def test_what_cannot_be_is_told_in_one_line_by_its_variable(variable: str, odd: str) -> None:
    command = "gateway" if variable == "HERD_GATEWAY_FILES" else "worker"
    done = invoke(command, **{"HERD_REDIS_URL": NO_REDIS, variable: odd})
    (line,) = done.stderr.splitlines()
    assert done.exit_code == 2
    assert line.startswith(f"herd: {variable}=")
    assert re.search("must (be|name)|should have", line)
    assert line.isprintable()
    assert len(line) < 300


@pytest.mark.parametrize("path", ["", ".", "not/there/yet"])
def test_a_folder_may_be_there_or_come(path: str) -> None:
    assert WorkerSettings.read(kernels_dir=path).kernels_dir == path
    assert GatewaySettings.read(gateway_files=path).gateway_files == path


def test_a_gateway_needs_a_folder_where_there_is_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(BadInput, match=r"no home folder.*Fix: HERD_GATEWAY_FILES"):
        storage_of(GatewaySettings.read(gateway_files=""))


def test_a_file_whose_name_no_job_could_say_needs_another_name() -> None:
    for path in ("my model.gguf", f"{'n' * 200}.gguf", "/", "hf:a/b:my model.gguf"):
        with pytest.raises(SettingsError, match=r"^HERD_MODEL=.*Fix: HERD_SERVED_MODEL_NAME"):
            WorkerSettings.read(model=path, served_model_name="", model_name="").check_served_model()
        WorkerSettings.read(model=path, served_model_name="mine").check_served_model()


@pytest.mark.redis
@pytest.mark.worker
@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("folder", "folder: a folder without config.json"),
        ("file", "file: not a model file known here"),
        ("my model.gguf", "HERD_MODEL='my model.gguf': no job can ask for a model of the name 'my model'"),
    ],
)
def test_a_worker_without_a_model_ends_with_one_line(
    model: str, words: str, redis_url: str, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    write_tiny_gguf(tmp_path / "my model.gguf")
    env = environment(HERD_REDIS_URL=redis_url, HERD_MODEL=model)
    done = run_forked([COMMAND[-1], "worker"], env, tmp_path)
    assert done.returncode == 2
    (line,) = (line for line in done.output.splitlines() if not line.startswith("{"))
    assert line.startswith(f"herd worker: {words}")
