"""Control tokens are named as the model's files name them, with BOS and EOS among them."""

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType

from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.text.tokenizer_json import TokenizerJson
from tests.model.sentence_piece import BOS_ID, EOS_ID, UNK_ID, gguf_values, train_sentence_piece
from tests.model.tiny_folder import write_tiny_tokenizer

SPECIALS = {"<unk>": UNK_ID, "<s>": BOS_ID, "</s>": EOS_ID}
ENDS = {"bos_token": "<s>", "eos_token": "</s>"}
ROLES = {**ENDS, "unk_token": "<unk>"}


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return gguf_values(train_sentence_piece())


def of_gguf(values: dict[str, Any]) -> ControlTokens:
    metadata = Metadata(values)
    return ControlTokens.from_metadata(metadata, Tokenizer.from_metadata(metadata))


def of_folder(folder: Path, **tokenizer_config: object) -> ControlTokens:
    path = write_tiny_tokenizer(folder, **tokenizer_config)
    return ControlTokens.from_json(TokenizerJson.open(path))


def test_a_gguf_file_names_its_control_tokens(values: dict[str, Any]) -> None:
    assert of_gguf(values) == ControlTokens(SPECIALS, ROLES)


def test_of_several_ends_a_gguf_file_names_one_eos(values: dict[str, Any]) -> None:
    names = [*values["tokenizer.ggml.tokens"]]
    names[300] = "<turn end>"  # which no text becomes
    tokens = of_gguf({**values, "tokenizer.ggml.tokens": (*names,), "tokenizer.ggml.eot_token_id": 300})
    assert tokens == ControlTokens({**SPECIALS, "<turn end>": 300}, ROLES)


def test_a_user_defined_token_is_text(values: dict[str, Any]) -> None:
    assert TokenType.USER_DEFINED in values["tokenizer.ggml.token_type"]
    assert of_gguf(values).ids == SPECIALS


def test_a_model_may_name_neither_bos_nor_eos(values: dict[str, Any]) -> None:
    plain = {key: value for key, value in values.items() if key[-12:] not in ("bos_token_id", "eos_token_id")}
    assert of_gguf(plain) == ControlTokens(SPECIALS, ROLES)


@pytest.mark.parametrize("eos", ["</s>", {"content": "</s>", "lstrip": False}])
def test_a_folder_names_its_control_tokens(tmp_path: Path, eos: object) -> None:
    assert of_folder(tmp_path, eos_token=eos) == ControlTokens(SPECIALS, ENDS)


def test_of_several_ends_a_folder_names_one_eos(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS_ID, 300]}))
    tokens = of_folder(tmp_path, eos_token="</s>")
    assert tokens.roles == ENDS
    assert set(tokens.ids.values()) == {*SPECIALS.values()}  # 300 is a word
    assert of_folder(tmp_path).roles == {"bos_token": "<s>"}
