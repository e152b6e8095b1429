"""The model file that the package ships."""

import hashlib
from collections.abc import Iterator

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.text.tokenizer import Tokenizer
from training.bundle import CHAT_TEMPLATE, PATH


@pytest.fixture(scope="module")
def model() -> Iterator[GGUFModel]:
    with GGUFModel.open(PATH) as model:
        yield model


def render(messages: list[dict[str, str]]) -> str:
    template = ImmutableSandboxedEnvironment().from_string(CHAT_TEMPLATE)
    return template.render(messages=messages, bos_token="<s>", eos_token="</s>")


def test_the_file_stays_small() -> None:
    assert PATH.stat().st_size <= 4_000_000


def test_the_file_is_the_one_that_was_measured() -> None:
    digest, name = PATH.with_suffix(".gguf.sha256").read_text().split()
    assert name == PATH.name
    assert hashlib.sha256(PATH.read_bytes()).hexdigest() == digest


def test_every_byte_has_a_token(model: GGUFModel) -> None:
    tokenizer = Tokenizer.from_metadata(model.metadata)
    assert {bytes([byte]) for byte in range(256)} <= set(tokenizer.pieces)
    assert tokenizer.decode(tokenizer.encode("Grüße, 你好 🦙", add_bos=False)) == " Grüße, 你好 🦙"


def test_the_file_carries_the_chat_template(model: GGUFModel) -> None:
    assert Tokenizer.from_metadata(model.metadata).chat_templates == {"default": CHAT_TEMPLATE}


def test_a_chat_of_two_turns_renders_as_llama_2_does() -> None:
    messages = [
        {"role": "system", "content": "You tell short tales."},
        {"role": "user", "content": " Count by twos. "},
        {"role": "assistant", "content": "2, 4, 6."},
        {"role": "user", "content": "Tell me a tale."},
    ]
    assert render(messages) == (
        "<s>[INST] <<SYS>>\nYou tell short tales.\n<</SYS>>\n\nCount by twos. [/INST] 2, 4, 6. </s>"
        "<s>[INST] Tell me a tale. [/INST]"
    )


def test_a_chat_without_a_system_message_has_no_system_part() -> None:
    assert render([{"role": "user", "content": "Tell me a tale."}]) == "<s>[INST] Tell me a tale. [/INST]"
