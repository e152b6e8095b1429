"""The texts of models that our engine may not know, without their weights."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Engine, decoders, models, pre_tokenizers

from llama_herd.errors import ModelFileError
from llama_herd.model.files.model_texts import open_texts
from llama_herd.model.files.open_model import open_model
from llama_herd.ops.settings import BUNDLED_MODEL

TEMPLATE = "{{ messages[0].content }}"
FILES = {
    "config": {"model_type": "mixture-of-seven", "text_config": {"vocab_size": 300}},
    "tokenizer_config": {"eos_token": "<end>", "chat_template": TEMPLATE},
    "generation_config": {"eos_token_id": [256], "temperature": 0.7},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a family that nobody knows, with fewer tokens than its model has rows."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    engine = Engine(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    engine.add_special_tokens(["<end>"])
    engine.save(str(tmp_path / "tokenizer.json"))
    for name, content in FILES.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def test_a_folder_of_any_family_tells_of_texts_without_weights(folder: Path) -> None:
    with pytest.raises(ModelFileError):
        open_model(folder)
    texts = open_texts(folder)
    tokenizer = texts.tokenizer
    assert tokenizer.decode(tokenizer.encode("a llama")) == "a llama"
    assert tokenizer.eos_ids == {256}
    assert tokenizer.vocab_size == 300, "an id without a token adds nothing to a text, and is no error"
    assert tokenizer.chat_templates == {"default": TEMPLATE}
    assert texts.sampling == {"temperature": 0.7}
    assert texts.control_tokens.ids["<end>"] == 256


def test_a_gguf_file_tells_the_same_as_a_model_of_it() -> None:
    texts = open_texts(BUNDLED_MODEL)
    with open_model(BUNDLED_MODEL) as model:
        assert texts.tokenizer.pieces == model.read_tokenizer().pieces
        assert texts.sampling == model.sampling
        assert texts.control_tokens == model.read_control_tokens(texts.tokenizer)


def test_what_is_none_is_told_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"a folder without tokenizer\.json\. Give a GGUF file, or"):
        open_texts(tmp_path)
    with pytest.raises(ModelFileError, match="no such file or folder"):
        open_texts(tmp_path / "gone")
