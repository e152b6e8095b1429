"""A model's chat templates are found wherever its files hold them, as transformers and gguf find them."""

from pathlib import Path
from typing import Any

import gguf
import pytest

from llama_herd.errors import ModelFileError
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.template_files import MAX_TEMPLATES, folder_templates, metadata_templates
from tests.model.tiny_folder import read_tokenizer, tiny_tokenizer
from tests.tiny import write_tiny_gguf

NAMED = {"default": "plain {{ messages }}", "tool_use": "tools {{ tools }}", "rag": "{{ documents }}\n"}
LISTED = [{"name": name, "template": template} for name, template in NAMED.items()]


@pytest.mark.long
@pytest.mark.parametrize("templates", [None, "plain", NAMED, {"rag": "only"}])
@pytest.mark.parametrize("save_jinja_files", [True, False])
def test_a_folder_s_templates_are_those_that_transformers_loads(
    tmp_path: Path, templates: Any, save_jinja_files: bool
) -> None:
    from transformers import AutoTokenizer

    engine = tiny_tokenizer()
    engine.chat_template = templates
    engine.save_pretrained(tmp_path, save_jinja_files=save_jinja_files)
    loaded = AutoTokenizer.from_pretrained(tmp_path).chat_template
    expected = {"default": loaded} if isinstance(loaded, str) else loaded or {}
    assert read_tokenizer(tmp_path / "tokenizer.json").chat_templates == expected


def test_jinja_files_stand_for_all_that_the_configuration_holds(tmp_path: Path) -> None:
    assert folder_templates(tmp_path, Metadata({"chat_template": LISTED}))[0] == NAMED
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "a.b.jinja").write_text("file")
    assert folder_templates(tmp_path, Metadata({"chat_template": LISTED}))[0] == {"a.b": "file"}
    (tmp_path / "chat_template.jinja").write_text("default file")
    expected = {"a.b": "file", "default": "default file"}
    assert folder_templates(tmp_path, Metadata({"chat_template": LISTED}))[0] == expected


@pytest.mark.parametrize(("given", "expected"), [("plain", {"default": "plain"}), (LISTED, NAMED)])
def test_a_gguf_file_s_templates_are_those_that_were_written(
    tmp_path: Path, given: Any, expected: dict[str, str]
) -> None:
    with GGUFModel.open(write_tiny_gguf(tmp_path / "m.gguf", chat_template=given)) as file:
        assert file.read_tokenizer().chat_templates == expected
        listed = file.metadata.get(gguf.Keys.Tokenizer.CHAT_TEMPLATES, ())
        assert {"default", *listed} == expected.keys()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("others", "kept"),
    [
        ({"": 1}, {}),
        ({"": "d", ".x": 1}, {"default": "d"}),
        ({".a b": "", "": "d", ".c": "c"}, {"default": "d", "c": "c"}),
    ],
)
def test_a_template_that_no_job_can_name_is_left_out(others: dict[str, object], kept: dict[str, str]) -> None:
    values = {f"tokenizer.chat_template{name}": template for name, template in others.items()}
    templates, (complaint,) = metadata_templates(Metadata(values, "my.gguf"))
    assert templates == kept
    assert complaint.startswith(f"my.gguf: 1 of {len(others)} chat templates are left out, '")


def test_beyond_the_limit_templates_are_left_out_but_not_those_of_plain_chats() -> None:
    names = [*map(str, range(MAX_TEMPLATES)), "tool_use", "default"]
    templates, (complaint,) = metadata_templates(
        Metadata({f"tokenizer.chat_template.{name}": "x" for name in names})
    )
    assert [*templates] == ["tool_use", "default", *names[: MAX_TEMPLATES - 2]]
    assert "2 of 18 chat templates are left out, '14' first: 16 are taken at most" in complaint


def test_a_folder_s_template_of_a_strange_name_is_left_out(tmp_path: Path) -> None:
    tiny_tokenizer().save_pretrained(tmp_path)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "a b.jinja").write_text("file")
    (tmp_path / "chat_template.jinja").write_text("default file")
    tokenizer = read_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.chat_templates == {"default": "default file"}
    assert "1 of 2 chat templates are left out, 'a b' first" in tokenizer.complaints[-1]


@pytest.mark.parametrize("entry", [{"template": "a"}, {"name": 1, "template": "a"}])
def test_a_list_of_templates_without_names_is_refused(tmp_path: Path, entry: dict[str, object]) -> None:
    with pytest.raises(ModelFileError, match="name"):
        folder_templates(tmp_path, Metadata({"chat_template": [entry]}))


def test_jinja_files_are_read_with_a_limit(tmp_path: Path) -> None:
    (tmp_path / "additional_chat_templates").mkdir()
    with (tmp_path / "additional_chat_templates" / "a.jinja").open("wb") as file:
        file.truncate(1 << 34)
    with pytest.raises(ModelFileError, match=r"a\.jinja: longer than the limit"):
        folder_templates(tmp_path, Metadata({}))
