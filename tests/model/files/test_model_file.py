"""One opener takes a GGUF file or a folder, and says what it takes when it is given something else."""

import re
import shutil
from pathlib import Path

import pytest

from llama_herd.errors import ModelFileError
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.files.open_model import open_model, read_tokens
from llama_herd.model.files.safetensors_model import SafetensorsModel
from llama_herd.model.files.sketch import Sketch
from llama_herd.model.text.control_tokens import ControlTokens
from tests.model.corpus import mixed_texts
from tests.model.tiny_folder import write_tiny_folder
from tests.tiny import BOS_ID, EOS_ID, UNK_ID, tiny_vocabulary, write_tiny_gguf

pytestmark = pytest.mark.long

CONTROL_TOKENS = ControlTokens(
    {"<unk>": UNK_ID, "<s>": BOS_ID, "</s>": EOS_ID},
    {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
)
ACCEPTED = "A model is a GGUF file, or a Hugging Face folder with config"


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def saved(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("hf") / "tiny", gguf_file)


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of the folder that a test may change."""
    return shutil.copytree(saved, tmp_path / "tiny")


def test_what_a_path_is_decides_how_it_is_opened(gguf_file: Path, saved: Path) -> None:
    with open_model(gguf_file) as file, open_model(str(saved)) as folder:
        assert isinstance(file, GGUFModel)
        assert isinstance(folder, SafetensorsModel)
        assert file.config == folder.config


def test_a_gguf_file_needs_no_suffix(gguf_file: Path, tmp_path: Path) -> None:
    shutil.copy(gguf_file, tmp_path / "blob")
    with open_model(tmp_path / "blob") as model:
        assert isinstance(model, GGUFModel)


def test_anything_else_is_told_what_a_model_is(folder: Path, gguf_file: Path) -> None:
    with pytest.raises(ModelFileError, match=f"none: no such file or folder. {ACCEPTED}"):
        open_model(folder / "none")
    with pytest.raises(ModelFileError, match=f"safetensors: a part of a model. {ACCEPTED}.*: give .*tiny"):
        open_model(folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=f"json: a part of a model. {ACCEPTED}.*: give .*tiny"):
        open_model(folder / "config.json")


@pytest.mark.parametrize("with_config", [False, True], ids=["alone", "beside config.json"])
def test_a_folder_of_gguf_files_is_told_which_to_give(
    folder: Path, gguf_file: Path, *, with_config: bool
) -> None:
    """Repositories of such files have a config.json, too, if only for the hub's own page."""
    (folder / "model.safetensors").unlink()
    if not with_config:
        (folder / "config.json").unlink()
    shutil.copy(gguf_file, folder / "tiny.gguf")
    (folder / "mmproj-tiny.gguf").touch()
    with pytest.raises(ModelFileError, match=r"a folder of GGUF files.* Give .*/tiny/tiny\.gguf"):
        open_model(folder)


def test_a_repository_in_the_cache_is_told_its_name(gguf_file: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models--a--Big-GGUF"
    commit = repository / "snapshots" / ("0" * 40)
    commit.mkdir(parents=True)
    with pytest.raises(ModelFileError, match=r"Give hf:a/Big-GGUF, or the folder of a commit"):
        open_model(repository)
    shutil.copy(gguf_file, commit / "b.gguf")
    with pytest.raises(ModelFileError, match=r"a folder of GGUF files.* Give .*/0{40}/b\.gguf"):
        open_model(commit.parent)


@pytest.mark.parametrize("with_config", [False, True], ids=["alone", "beside config.json"])
def test_an_adapter_is_told_to_be_merged(folder: Path, *, with_config: bool) -> None:
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    if not with_config:
        (folder / "config.json").unlink()
    with pytest.raises(ModelFileError, match=r"an adapter, which is no model.*merge_and_unload"):
        open_model(folder)


def test_an_adapter_beside_whole_weights_is_named_as_left_out(folder: Path) -> None:
    with open_model(folder) as model:
        assert model.complaints == ()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    with open_model(folder) as model:
        (complaint,) = model.complaints
    assert complaint.startswith(f"{folder}/adapter_config.json: an adapter, which is left out")


#: As the site, llama.cpp and Ollama name them, and what chooses among the files.
REPOSITORIES = {
    "Qwen/Qwen2.5-0.5B": "",
    "Qwen/Qwen2.5-0.5B:latest": "",
    "Qwen/Qwen2.5-0.5B:Q4_K_M": ":Q4_K_M",
    "hf.co/Qwen/Qwen2.5-0.5B": "",
    "hf.co/Qwen/Qwen2.5-0.5B:q8_0": ":q8_0",
    "hf://Qwen/Qwen2.5-0.5B": "",
    "huggingface.co/Qwen/Qwen2.5-0.5B": "",
    "https://huggingface.co/Qwen/Qwen2.5-0.5B": "",
    "https://huggingface.co/Qwen/Qwen2.5-0.5B/": "",
    "https://huggingface.co/Qwen/Qwen2.5-0.5B/tree/main": "",
    "https://huggingface.co/Qwen/Qwen2.5-0.5B/blob/main/q8.gguf": ":q8.gguf",
    "https://huggingface.co/Qwen/Qwen2.5-0.5B/resolve/main/a/q8.gguf?download=true": ":a/q8.gguf",
}


@pytest.mark.parametrize("name", REPOSITORIES)
def test_the_name_of_a_repository_is_told_how_to_fetch_it(name: str) -> None:
    known = re.escape(f"Qwen/Qwen2.5-0.5B{REPOSITORIES[name]}")
    command = rf"To fetch it: herd pull {known}, or give hf:{known} as the model\.$"
    for look in (open_model, read_tokens):
        with pytest.raises(ModelFileError, match=command):
            look(name)


def test_a_missing_file_is_no_repository(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    for path in (f"{folder.name}/none", "/no/such", "a/b/c", "../none", "models/tiny.gguf"):
        with pytest.raises(ModelFileError, match="no such file or folder") as caught:
            open_model(path)
        assert "To fetch it" not in str(caught.value)


def test_a_name_that_the_system_refuses_is_refused_in_its_words() -> None:
    name = 300 * "a"
    for look in (open_model, read_tokens):
        with pytest.raises(ModelFileError, match=f"^{name}: cannot be read: File name too long\\.$"):
            look(name)
    assert Sketch.from_path(Path(name)) == Sketch()


def test_both_kinds_have_the_same_tokenizer(gguf_file: Path, saved: Path) -> None:
    with open_model(gguf_file) as file, open_model(saved) as folder:
        ours, theirs = file.read_tokenizer(), folder.read_tokenizer()
        assert file.read_control_tokens(ours) == folder.read_control_tokens(theirs) == CONTROL_TOKENS
    assert ours.pieces == theirs.pieces
    assert (ours.bos_id, ours.eos_ids, ours.adds_bos) == (theirs.bos_id, theirs.eos_ids, theirs.adds_bos)
    assert [text for text in mixed_texts()[:500] if ours.encode(text) != theirs.encode(text)] == []


def test_rows_beyond_the_tokens_add_nothing_to_a_text(folder: Path, tmp_path: Path) -> None:
    num_rows = len(tiny_vocabulary()) + 5
    padded = write_tiny_gguf(tmp_path / "padded.gguf", vocab_size=num_rows)
    write_tiny_folder(folder, padded, vocab_size=num_rows)
    with open_model(folder) as model:
        tokenizer = model.read_tokenizer()
        assert tokenizer.vocab_size == model.config.vocab_size == num_rows
        assert tokenizer.decode([*tokenizer.encode("the herd"), num_rows - 1]) == " the herd"
        assert model.read_control_tokens(tokenizer) == CONTROL_TOKENS


def test_tokens_without_a_row_are_refused_by_both_numbers(folder: Path, tmp_path: Path) -> None:
    short = write_tiny_gguf(tmp_path / "short.gguf", vocab_size=300)
    write_tiny_folder(folder, short, vocab_size=300)
    with (
        open_model(folder) as model,
        pytest.raises(ModelFileError, match=r"vocab_size is 300, .* has 315 tokens"),
    ):
        model.read_tokenizer()


def test_a_folder_without_a_tokenizer_is_told_how_to_get_one(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with (
        open_model(folder) as model,
        pytest.raises(ModelFileError, match=r"tokenizer\.json: missing\. .* hf download"),
    ):
        model.read_tokenizer()
