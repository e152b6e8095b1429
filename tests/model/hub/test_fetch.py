"""What is told while a model comes."""

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from llama_herd.errors import ModelFileError
from llama_herd.model.files.safetensors import weight_paths
from llama_herd.model.hub.choice import ChosenFiles, Room
from llama_herd.model.hub.fetch import HubModel, fetch_model, find_model
from llama_herd.model.hub.name import HubName
from tests.full_disk import room_for
from tests.hub_server import HubServer

constants = pytest.importorskip("huggingface_hub.constants")

REPO = "owner/big"
PARTS = {f"big-0000{number}-of-00002.gguf": os.urandom(12_000_000) for number in (1, 2)}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub that this process asks; huggingface_hub has read its variables long before."""
    with HubServer({REPO: dict(PARTS)}) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = f"{server.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield server


def fetched(told: list[ChosenFiles], notes: list[tuple[int, int]]) -> HubModel:
    return fetch_model(
        HubName(REPO), lambda: Room(0, ""), told.append, lambda done, whole: notes.append((done, whole))
    )


@pytest.mark.long
def test_the_bytes_of_all_files_are_told_as_they_come(hub: HubServer) -> None:
    notes: list[tuple[int, int]] = []
    told: list[ChosenFiles] = []
    model = fetched(told, notes)
    assert model.is_new
    assert told == [model.choice]
    assert {whole for _, whole in notes} == {24_000_000}
    done = [num_done for num_done, _ in notes]
    assert (done[0], done[-1]) == (0, 24_000_000)
    assert len(set(done)) > 3
    assert all(earlier <= later for earlier, later in pairwise(done))
    assert not fetched(told, notes).is_new
    assert len(told) == 1


def test_a_disk_that_is_too_small_is_named_before_anything_comes(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(
        ModelFileError, match=r"12\.0 MB are to come, but .* has 1\.0 MB free\. Fix: .*HF_HOME"
    ):
        fetched([], [])
    assert all(hub.ranges(name) == [] for name in PARTS)


def test_of_what_is_there_and_new_nothing_is_written(hub: HubServer) -> None:
    """The cache may be a volume that this machine only reads."""
    model = fetched([], [])
    with room_for(0):
        assert fetched([], []) == HubModel(model.path, model.choice)


def test_an_index_says_which_files_hold_the_weights(hub: HubServer) -> None:
    """Some have names of their own, and others that are named as usual may stand beside them."""
    shards = {f"model-0000{number}-of-000002.safetensors": b"one" for number in (1, 2)}
    index = json.dumps({"weight_map": dict(zip("ab", shards, strict=True))}).encode()
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors.index.json": index} | shards
    hub.repos[REPO] = files | {"model-00001-of-00003.safetensors": b"of another one"}
    told: list[ChosenFiles] = []
    model = fetched(told, [])
    assert {one.name: one.read_bytes() for one in model.path.iterdir()} == files
    assert told == [model.choice]
    assert {one.name for one in model.choice.files} == files.keys()


def test_an_index_that_cannot_be_read_is_told_when_the_model_is_opened(hub: HubServer) -> None:
    index = b'{"weight_map": ' + b"[" * 200_000
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors.index.json": index}
    hub.repos[REPO] = dict(files)
    model = fetched([], [])
    assert {one.name: one.read_bytes() for one in model.path.iterdir()} == files
    found = find_model(HubName(REPO), lambda: Room(0, ""))
    assert found is not None
    with pytest.raises(ModelFileError, match=r"index\.json: nested more than"):
        weight_paths(found.path)
