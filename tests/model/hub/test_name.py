"""What people call a model of Hugging Face, and what jobs then call it by."""

from pathlib import Path

import pytest

from llama_herd.errors import ModelFileError, SettingsError
from llama_herd.model.hub.name import HubName
from llama_herd.worker.settings import WorkerSettings


@pytest.mark.parametrize(
    ("text", "name", "served"),
    [
        ("Qwen/Qwen2.5-0.5B", HubName("Qwen/Qwen2.5-0.5B"), "Qwen2.5-0.5B"),
        ("hf:a/Big-GGUF", HubName("a/Big-GGUF"), "Big"),
        ("hf:/a/Big-GGUF:Q4_K_M", HubName("a/Big-GGUF", type="Q4_K_M"), "Big"),
        ("a/Big:UD-Q4_K_XL", HubName("a/Big", type="UD-Q4_K_XL"), "Big"),
        ("a/Big:big-Q8_0.gguf", HubName("a/Big", file="big-Q8_0.gguf"), "big-Q8_0"),
        ("a/Big:x/b-00001-of-00002.gguf", HubName("a/Big", file="x/b-00001-of-00002.gguf"), "b"),
        ("https://huggingface.co/a/Big/blob/main/b.gguf", HubName("a/Big", file="b.gguf"), "b"),
        ("a/Big:latest", HubName("a/Big"), "Big"),
    ],
)
def test_a_name_tells_the_repository_and_what_of_it(text: str, name: HubName, served: str) -> None:
    assert HubName.parse(text) == name
    assert HubName.parse(f"hf:{name}") == name
    assert name.served_name == served
    assert WorkerSettings(model=Path(f"hf:{name}"), _env_file=None).served_model == served


@pytest.mark.parametrize(
    ("path", "served"),
    [
        (f"/hub/models--a--Big-GGUF/snapshots/{'0' * 40}", "Big"),
        (f"/hub/models--a--Big/blobs/{'0' * 64}", "Big"),
        (f"/hub/models--a--Big/snapshots/{'0' * 40}/b.gguf", "b"),
        (f"/models/{'0' * 40}", "0" * 40),
    ],
)
def test_what_lies_in_the_cache_under_a_digest_is_called_as_its_repository(path: str, served: str) -> None:
    assert WorkerSettings(model=Path(path), _env_file=None).served_model == served


@pytest.mark.parametrize(
    "text",
    ["", "big", "hf:", "hf:big", "a/b/c", "../b", "a/..", "a/b:", "a/b:x\ny", "a/b:é", "a b/c", "/a/b"],
)
def test_anything_else_is_refused_with_the_allowed_forms(text: str) -> None:
    with pytest.raises(ModelFileError, match=r"OWNER/NAME:FILE\.gguf"):
        HubName.parse(text)


def test_a_setting_is_a_name_only_where_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert HubName.from_setting(Path("a/b")) is None
    assert HubName.from_setting(Path("hf:a/b")) == HubName("a/b")
    monkeypatch.setenv("HERD_MODEL", "hf:big")
    with pytest.raises(SettingsError, match=r"HERD_MODEL='hf:big': .*OWNER/NAME:FILE\.gguf"):
        WorkerSettings.read()
