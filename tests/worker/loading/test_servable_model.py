"""`herd inspect`, `herd doctor` and the worker say the same of a model: that it is served, or why not."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from llama_herd.errors import BadInput, GenerationError
from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.worker.loading import memory_plan
from llama_herd.worker.loading.device import on_device
from llama_herd.worker.loading.loaded_model import LoadedModel
from llama_herd.worker.settings import WorkerSettings
from tests.cli.herd_command import invoke
from tests.hostile.foreign_models import FOREIGN_MODELS
from tests.model.files.test_gguf_model import BAD_SETS, Change, write_changed
from tests.model.tiny_folder import write_tiny_folder
from tests.tiny import write_tiny_gguf

pytestmark = pytest.mark.long

#: A redis URL where nobody is: what the doctor says of Redis is not looked at.
URL = EmbeddedRedis().url

Writer = Callable[[Path], Path]


def tiny(**options: object) -> Writer:
    return lambda folder: write_tiny_gguf(folder / "m.gguf", **options)  # type: ignore[arg-type]


def changed(change: Change) -> Writer:
    return lambda folder: write_changed(folder / "m.gguf", change)


def truncated(folder: Path) -> Path:
    path = write_tiny_gguf(folder / "m.gguf")
    path.write_bytes(path.read_bytes()[:-4096])
    return path


def text(folder: Path) -> Path:
    path = folder / "m.gguf"
    path.write_text("no model\n" * 10)
    return path


def saved(folder: Path) -> Path:
    return write_tiny_folder(folder / "m", write_tiny_gguf(folder / "m.gguf"))


def saved_without(name: str) -> Writer:
    def write(folder: Path) -> Path:
        path = saved(folder)
        (path / name).unlink()
        return path

    return write


GOOD: Mapping[str, tuple[Writer, dict[str, str]]] = {
    "plain": (tiny(), {}),
    "quantised and tied": (tiny(type="Q8_0", tied=True), {}),
    "folder": (saved, {}),
    "rope factors": (tiny(rope_factors=True), {}),
    "deterministic": (tiny(), {"HERD_DETERMINISTIC": "true"}),
    "template": (tiny(chat_template="{{ messages[0].content }}"), {}),
    "broken template": (tiny(chat_template="{% if %}"), {}),
}
BAD: Mapping[str, tuple[Writer, dict[str, str]]] = {
    "none": (lambda folder: folder / "m.gguf", {}),
    "text": (text, {}),
    "truncated": (truncated, {}),
    "no tokenizer": (changed(Change("")), {}),
    **{name: (changed(change), {}) for name, (change, _) in BAD_SETS.items()},
    **{f"foreign: {name}": (write, {}) for name, write in FOREIGN_MODELS.items()},
    "other shape": (changed(Change("output_norm.weight", np.ones(7, "f"))), {}),
    "folder without a tokenizer": (saved_without("tokenizer.json"), {}),
    "folder without weights": (saved_without("model.safetensors"), {}),
    "deterministic in bfloat16": (tiny(), {"HERD_DETERMINISTIC": "true", "HERD_DTYPE": "bfloat16"}),
    "context": (tiny(), {"HERD_CONTEXT_TOKENS": "513"}),
    "cache": (tiny(), {"HERD_KV_CACHE_TOKENS": str(10**12)}),
}


@pytest.fixture(autouse=True)
def _steady_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is free does not change from one look to the next, and all look with the same settings."""
    monkeypatch.delenv("HERD_DTYPE")
    monkeypatch.delenv("HERD_DEVICE")
    monkeypatch.setattr(memory_plan, "free_bytes", lambda device: 1 << 30)


def inspected(path: Path, variables: Mapping[str, str]) -> str:
    """Why it cannot be served; empty: it can."""
    done = invoke("inspect", str(path), HERD_REDIS_URL=URL, **variables)
    assert (done.exit_code == 0) is (done.stderr == "")
    return done.stderr.removeprefix("herd: ").strip()


def examined(path: Path, variables: Mapping[str, str]) -> str:
    done = invoke("doctor", "--json", "--model", str(path), HERD_REDIS_URL=URL, **variables)
    found = [one for one in json.loads(done.stdout)["findings"] if one["subject"] in ("model", "memory")]
    assert found
    return " ".join(one["detail"] for one in found if one["state"] == "fail")


def loaded(path: Path, variables: Mapping[str, str]) -> str:
    fields = {name.removeprefix("HERD_").lower(): value for name, value in variables.items()}
    settings = on_device(WorkerSettings.read(model=path, threads=1, **fields))
    try:
        LoadedModel.load(settings, "cpu").close()
    except BadInput as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("write", "variables"), GOOD.values(), ids=GOOD.keys())
def test_what_a_worker_serves_nobody_complains_of(
    tmp_path: Path, write: Writer, variables: dict[str, str]
) -> None:
    path = write(tmp_path)
    assert [look(path, variables) for look in (loaded, inspected, examined)] == ["", "", ""]


@pytest.mark.parametrize(("write", "variables"), BAD.values(), ids=BAD.keys())
def test_what_a_worker_refuses_the_others_refuse_for_the_same_reason(
    tmp_path: Path, write: Writer, variables: dict[str, str]
) -> None:
    path = write(tmp_path)
    reason = loaded(path, variables)
    assert reason
    assert inspected(path, variables) == reason
    assert examined(path, variables) == reason.partition(" Fix: ")[0].removesuffix(".")


def test_a_model_without_room_is_shown_and_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf")
    monkeypatch.setattr(memory_plan, "free_bytes", lambda device: 1000)
    reason = loaded(path, {})
    assert "cpu has 1,000 free" in reason
    assert inspected(path, {}) == reason
    assert examined(path, {}) == reason.partition(". Fix: ")[0]
    shown = json.loads(invoke("inspect", str(path), "--json").stdout)
    assert (shown["shape"]["num_layers"], shown["complaint"]) == (2, reason)


def test_a_template_that_could_not_be_tried_in_time_ends_a_worker_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is to be started again, and not to refuse all chats for as long as it runs."""
    path = write_tiny_gguf(tmp_path / "m.gguf", chat_template="{{ messages[0].content }}")
    monkeypatch.setattr("llama_herd.model.text.helper.START_S", 0.0)
    shown = json.loads(invoke("inspect", str(path), "--json").stdout)
    assert "takes longer than 0 s" in shown["tokenizer"]["chat_complaint"]
    report = json.loads(invoke("doctor", "--json", HERD_REDIS_URL=URL, HERD_MODEL=str(path)).stdout)
    assert [one["state"] for one in report["findings"] if one["subject"] == "chat"] == ["warn"]
    with pytest.raises(GenerationError, match="takes longer than 0 s"):
        LoadedModel.load(WorkerSettings.read(model=path, threads=1), "cpu")


def test_a_template_that_cannot_be_used_is_named_by_all(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", chat_template="{% if %}")
    shown = json.loads(invoke("inspect", str(path), "--json").stdout)
    complaint = shown["tokenizer"]["chat_complaint"]
    assert "the chat template fails: line 1" in complaint
    assert f"refused: {complaint}" in invoke("inspect", str(path)).stdout
    report = json.loads(invoke("doctor", "--json", HERD_REDIS_URL=URL, HERD_MODEL=str(path)).stdout)
    (chat,) = [one for one in report["findings"] if one["subject"] == "chat"]
    assert (chat["state"], complaint in chat["detail"]) == ("warn", True)
    assert LoadedModel.load(WorkerSettings.read(model=path, threads=1), "cpu").maker.chat is None
