"""What a worker tells of a tokenizer is what the model's files say."""

import json
from pathlib import Path

import pytest

from llama_herd.tasks.protocol.tokenizer_info import TokenizerInfo
from llama_herd.worker.loading.servable_model import ServableModel
from llama_herd.worker.loading.servable_texts import MAX_TOLD_TEMPLATE_BYTES
from llama_herd.worker.settings import WorkerSettings
from tests.model.tiny_folder import write_tiny_folder
from tests.tiny import write_tiny_gguf

pytestmark = pytest.mark.long  # to import transformers takes seconds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    return write_tiny_folder(folder, write_tiny_gguf(tmp_path_factory.mktemp("file") / "m.gguf"))


def info_of(model: Path) -> TokenizerInfo:
    with ServableModel.open(WorkerSettings(model=model), "cpu") as servable:
        info = servable.tokenizer_info(512)
    assert TokenizerInfo.model_validate_json(info.model_dump_json()) == info
    return info


def changed(folder: Path, **config: object) -> TokenizerInfo:
    """Of the folder with other values in its tokenizer_config.json."""
    path = folder / "tokenizer_config.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | config))
    try:
        return info_of(folder)
    finally:
        path.write_text(before)


def test_the_roles_are_those_of_the_files(folder: Path) -> None:
    from transformers import AutoTokenizer

    theirs, info = AutoTokenizer.from_pretrained(folder), info_of(folder)
    for role in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        assert getattr(info, role) == getattr(theirs, role), role
    assert (info.add_bos_token, info.add_eos_token, info.model_max_length) == (True, False, 512)


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (None, None),
        ("{{ messages }}", "{{ messages }}"),
        ("x" * MAX_TOLD_TEMPLATE_BYTES, "x" * MAX_TOLD_TEMPLATE_BYTES),
        ("x" * (MAX_TOLD_TEMPLATE_BYTES + 1), None),
        ([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}], "d"),
        ([{"name": "tool_use", "template": "t"}], None),
    ],
)
def test_the_template_is_the_default_one(folder: Path, template: object, told: str | None) -> None:
    assert changed(folder, chat_template=template).chat_template == told


def test_a_role_of_the_model_s_own_is_left_out(folder: Path) -> None:
    assert "image_token" not in changed(folder, image_token="<s>").model_dump()


def test_a_file_tells_as_a_folder_does(folder: Path, tmp_path: Path) -> None:
    told = info_of(write_tiny_gguf(tmp_path / "m.gguf", chat_template="{{ messages }}"))
    assert told.chat_template == "{{ messages }}"
    assert (told.bos_token, told.eos_token) == (info_of(folder).bos_token, info_of(folder).eos_token)
