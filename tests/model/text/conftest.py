"""The tiny vocabulary with its control tokens, and a maker of templates."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.text.tokenizer_json import TokenizerJson
from tests.model.text.made_templates import MadeTemplates
from tests.model.tiny_folder import read_tokenizer, write_tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"), eos_token="</s>", unk_token="<unk>")


@pytest.fixture(scope="module")
def tokenizer(tokenizer_path: Path) -> Tokenizer:
    return read_tokenizer(tokenizer_path)


@pytest.fixture(scope="module")
def control_tokens(tokenizer_path: Path) -> ControlTokens:
    return ControlTokens.from_json(TokenizerJson.open(tokenizer_path))


@pytest.fixture
def templates(tokenizer: Tokenizer, control_tokens: ControlTokens) -> Iterator[MadeTemplates]:
    templates = MadeTemplates(tokenizer, control_tokens)
    yield templates
    templates.close()
