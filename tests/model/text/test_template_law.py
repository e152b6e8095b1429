"""Templates of every family come to the same ids as in transformers, whatever a chat has."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gguf import TokenType
from jinja2.exceptions import TemplateError
from tokenizers import AddedToken, normalizers, pre_tokenizers

from llama_herd.errors import GenerationError, InvalidJob
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.chat import Chat, ChatTemplates
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.text.tokenizer_json import TokenizerJson
from llama_herd.worker.engine.detokenizer import Detokenizer
from tests.model.text.templates import (
    TAKE_DEVELOPERS,
    TAKE_PARTS,
    TEMPLATES,
    TOKENS,
    WANT_EMPTY,
    WANT_NULL,
    WANT_TEXT,
)
from tests.model.tiny_folder import read_tokenizer, tiny_tokenizer
from tests.tiny import tiny_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

pytestmark = pytest.mark.long

Turn = dict[str, Any]


def turns(*contents: str, system: str | None = None) -> list[Turn]:
    """Turns of user and assistant, after one of the system if there is one."""
    head = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return head + [{"role": roles[number % 2], "content": text} for number, text in enumerate(contents)]


def in_parts(chat: list[Turn], *cuts: int) -> list[Turn]:
    """The same with the content of each turn cut in parts."""

    def parts(text: str) -> list[Turn]:
        ends = [0, *cuts, len(text)]
        return [{"type": "text", "text": text[a:b]} for a, b in pairwise(ends)]

    return [turn | {"content": parts(turn["content"])} for turn in chat]


def tool(name: str, **properties: object) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": sorted(properties)[:1]}
    return {
        "type": "function",
        "function": {"name": name, "description": f"Gets the {name} <b>&</b> 'it'", "parameters": parameters},
    }


TOOLS = [
    tool("weather", city={"type": "string", "default": None}, unit={"enum": ["C", "F"], "type": "string"}),
    tool("sum", numbers={"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
]
CALL = {"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
CALLING: list[Turn] = [
    *turns("is it on in the herd"),
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "content": "22 <°C>", "name": "weather", "tool_call_id": "call12345"},
    {"role": "assistant", "content": "the herd"},
    *turns("and the llama"),
]
THINKING: list[Turn] = [
    *turns("a token", "<think>\nthe queue\n</think>\n\nthe herd", "and"),
    {"role": "assistant", "content": "on", "reasoning_content": "is it the llama"},
]
DOCUMENTS: list[Turn] = [{"title": "A", "text": "the herd"}, {"title": "B", "text": "a llama", "doc_id": 7}]

CHATS = {
    "one": Chat(turns("the herd")),
    "system": Chat(turns("the llama is in the queue", system="be a llama")),
    "many": Chat(turns("the", " a\ttoken\n\n", "and", "on  the queue ", "to", system=" be a llama\n ")),
    "blank": Chat(turns("the", "", "  ", "\n", "to")),
    "odd signs": Chat(
        turns("你好, Ñandú 🦙", "é e\u0301 \u200b\ufeff", "العربية \u0085\u2028", system="にほん")
    ),
    "jinja": Chat(turns("{{ 7 * 7 }} {% raw %} {# the #}", "${the} {%- endfor %}", "%s {0} {{ bos_token }}")),
    "HTML": Chat(turns("<b>&amp;'\"</b>", "\\n \\u0041", "a\r\nb")),
    "two users": Chat([*turns("the"), *turns("herd")]),
    "assistant first": Chat(turns("the", "herd")[1:]),
    "prefilled": Chat(turns("the", "herd")),
    "calls": Chat(CALLING),
    "calls and tools": Chat(CALLING, tools=TOOLS),
    "tools": Chat(turns("the herd", system="a llama"), tools=TOOLS),
    "no tool": Chat(turns("the herd"), tools=[]),
    "two calls": Chat([CALLING[0], CALLING[1] | {"tool_calls": [CALL, CALL]}, *CALLING[2:]]),
    "calls with a word": Chat([CALLING[0], CALLING[1] | {"content": "let me see"}, *CALLING[2:]]),
    "thoughts": Chat(THINKING),
    "do not think": Chat(turns("a"), options={"enable_thinking": False}),
    "think": Chat(
        turns("a"), options={"enable_thinking": True, "thinking": True, "controls": {"length": "ä"}}
    ),
    "date": Chat(turns("a"), options={"date_string": "1 Jan 2001", "reasoning_effort": "high"}),
    "documents": Chat(turns("a"), documents=DOCUMENTS),
    "documents and tools": Chat(turns("a"), documents=DOCUMENTS, tools=TOOLS),
    "developer": Chat([{"role": "developer", "content": "be a llama"}, *turns("the")]),
    "parts": Chat(in_parts(turns("the herd", "a llama", "and"), 3)),
    "many parts": Chat(in_parts(turns("the herd is", system="a llama"), 1, 2, 5)),
}
SPELT_OUT = Chat(
    turns("</s><|user|> [INST] a", "<|im_end|>\n<|im_start|>", "<|eot_id|>", system="<s><|end|>"),
    tools=[tool("<|im_end|>", x={"type": "</s>"})],
    documents=[{"title": "</s>", "text": "[/INST] <|end|>"}],
    options={"date_string": "<|eot_id|>"},
)


def plain_tokenizer() -> "PreTrainedTokenizerFast":
    engine = tiny_tokenizer()
    engine.add_special_tokens({"additional_special_tokens": list(TOKENS)})
    return engine


def stripping_tokenizer() -> "PreTrainedTokenizerFast":
    """White space beside its control tokens is left out, as by Phi-3's."""
    engine = tiny_tokenizer()
    stripping = [AddedToken(token, lstrip=token[1] == "/", rstrip=True, normalized=False) for token in TOKENS]
    engine.add_special_tokens({"additional_special_tokens": stripping})
    return engine


def once_tokenizer() -> "PreTrainedTokenizerFast":
    """Only the first of several texts begins with a space, as by Mistral's."""
    engine = plain_tokenizer()
    engine.backend_tokenizer.normalizer = normalizers.Sequence([])
    engine.backend_tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return engine


class Family:
    """transformers' tokenizer, and ours of the folder that it saves."""

    def __init__(self, engine: "PreTrainedTokenizerFast", folder: Path) -> None:
        self.engine = engine
        engine.save_pretrained(folder)
        self.tokenizer = read_tokenizer(folder / "tokenizer.json")
        control_tokens = ControlTokens.from_json(TokenizerJson.open(folder / "tokenizer.json"))
        self.templates = ChatTemplates(TEMPLATES, self.tokenizer, control_tokens)


@pytest.fixture(scope="module", params=[plain_tokenizer, stripping_tokenizer, once_tokenizer])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    family = Family(request.param(), tmp_path_factory.mktemp("family"))
    yield family
    family.templates.close()


def with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return call | {
        "function": function | {"arguments": json.dumps(function["arguments"], ensure_ascii=False)}
    }


def known_to(name: str, chat: Chat) -> Chat:
    """The chat in a form that a template takes which would lose some of it otherwise."""
    messages = []
    for message in chat.messages:
        found: dict[str, Any] = dict(message)
        if isinstance(found.get("content"), list) and name not in TAKE_PARTS:
            found["content"] = "".join(part["text"] for part in found["content"])
        if found["role"] == "developer" and name not in TAKE_DEVELOPERS:
            found["role"] = "system"
        if "tool_calls" in found and name in WANT_NULL:
            found = {"content": None, **found}
        if "tool_calls" in found and name in WANT_EMPTY:
            found = {"content": "", **found}
        if "tool_calls" in found and name in WANT_TEXT:
            found["tool_calls"] = [with_text(call) for call in found["tool_calls"]]
        messages.append(found)
    return replace(chat, messages=messages)


def expected_ids(family: Family, name: str, chat: Chat, **choices: bool) -> list[int] | None:
    """transformers' ids; None where the template refuses the chat."""
    if any(None in message.values() for message in chat.messages):
        return ids_with_nulls(family, name, chat, **choices)
    try:
        ids: list[int] = family.engine.apply_chat_template(
            chat.messages,
            tools=chat.tools,
            documents=chat.documents,
            chat_template=TEMPLATES[name],
            return_dict=False,
            **choices,
            **chat.options,
        )
    except (TemplateError, TypeError, KeyError):
        return None
    return ids


def ids_with_nulls(family: Family, name: str, chat: Chat, **choices: bool) -> list[int]:
    """The ids of a template that sees nulls, which `apply_chat_template` leaves out."""
    from transformers.utils.chat_template_utils import render_jinja_template

    variables = {**family.engine.special_tokens_map, **choices, **chat.options}
    given = {"conversations": [chat.messages], "tools": chat.tools, "documents": chat.documents}
    (text,), _ = render_jinja_template(**given, chat_template=TEMPLATES[name], **variables)
    ids: list[int] = family.engine(text, add_special_tokens=False)["input_ids"]
    return ids


@pytest.mark.drawn(1)
@pytest.mark.parametrize("name", TEMPLATES)
def test_ids_equal_transformers(family: Family, name: str) -> None:
    num_equal = 0
    for title, chat in CHATS.items():
        for add_generation_prompt in (True, False):
            expected = expected_ids(
                family, name, known_to(name, chat), add_generation_prompt=add_generation_prompt
            )
            try:
                named = replace(chat, template=name)
                found = family.templates.encode(named, add_generation_prompt=add_generation_prompt)
            except GenerationError:
                assert not expected, title
            else:
                assert found == expected, title
                num_equal += 1
    assert num_equal >= len(CHATS)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_a_call_is_taken_wherever_one_with_a_word_is(family: Family, name: str, content: Turn) -> None:
    """Also by a template that knows no calls, with and without what came of it."""
    came = {"role": "tool", "content": "22", "name": "weather", "tool_call_id": "call12345"}
    for after in (turns("and"), [came, {"role": "assistant", "content": "22"}, *turns("and")]):
        chats = [
            Chat(
                [*turns("is it on"), {"role": "assistant", **said, "tool_calls": [CALL]}, *after],
                template=name,
            )
            for said in ({"content": "x"}, content)
        ]
        try:
            family.templates.encode(chats[0])
        except GenerationError:
            continue  # it refuses the role of a tool, or a call that none answers
        family.templates.encode(chats[1])


@pytest.mark.parametrize("name", TEMPLATES)
def test_control_tokens_equal_transformers_whatever_a_chat_spells_out(family: Family, name: str) -> None:
    """And the text does, but for spaces: transformers cuts a text where it spells a control token."""
    expected = expected_ids(family, name, SPELT_OUT, add_generation_prompt=True, sanitize_control_tokens=True)
    assert expected is not None
    found = family.templates.encode(replace(SPELT_OUT, template=name))
    control_ids = set(family.engine.all_special_ids)
    for of in (control_ids.__contains__, lambda token_id: True):
        texts = [family.engine.decode(list(filter(of, ids))).replace(" ", "") for ids in (found, expected)]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("name", TEMPLATES)
def test_halves_of_control_tokens_come_to_none(family: Family, name: str) -> None:
    def control_ids(chat: Chat) -> list[int]:
        return [i for i in family.templates.encode(replace(chat, template=name)) if i in special_ids]

    special_ids = set(family.engine.all_special_ids)
    halves = Chat(turns("< s> <|user", "|> <", "/s> <|  ", "user|> <", "|user|>", system="|end|> <"))
    assert control_ids(halves) == control_ids(Chat(turns("a", "a", "a", "a", "a", system="a")))


@pytest.mark.parametrize("architecture", ["phi3", "llama"])
def test_a_phi_3_in_a_gguf_file_leaves_out_the_white_space_that_its_folder_does(architecture: str) -> None:
    names = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
    engine, pieces = tiny_tokenizer(), tiny_vocabulary()
    stripping = [AddedToken(token, rstrip=architecture == "phi3", normalized=False) for token in names]
    engine.add_special_tokens({"additional_special_tokens": stripping})
    types = [int(piece.type) for piece in pieces] + [int(TokenType.CONTROL)] * len(names)
    metadata = Metadata(
        {
            "general.architecture": architecture,
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": (*(piece.text for piece in pieces), *names),
            "tokenizer.ggml.token_type": np.array(types, np.int32),
            "tokenizer.ggml.scores": np.array([piece.score for piece in pieces] + [0.0] * len(names)),
        }
    )
    tokenizer = Tokenizer.from_metadata(metadata)
    control_tokens = ControlTokens.from_metadata(metadata, tokenizer)
    template, chat = TEMPLATES["phi_3"], turns("the herd", "\n is in", " a\tqueue\n", system="be a llama")
    with ChatTemplates({"default": template}, tokenizer, control_tokens) as templates:
        assert templates.encode(Chat(chat)) == engine.apply_chat_template(
            chat, chat_template=template, add_generation_prompt=True, return_dict=False
        )


NAMED = {"default": "d", "tool_use": "t", "rag": "r"}


@pytest.mark.parametrize("names", [("default", "tool_use", "rag"), ("default",), ("rag",)])
def test_of_several_templates_the_one_is_taken_that_transformers_takes(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    engine = tiny_tokenizer()
    engine.save_pretrained(tmp_path)
    tokenizer = read_tokenizer(tmp_path / "tokenizer.json")
    engine.chat_template = {name: NAMED[name] for name in names}
    with ChatTemplates(engine.chat_template, tokenizer, ControlTokens({}, {})) as templates:
        for tools, template in product((None, [], TOOLS), (None, *names)):
            chat = Chat(turns("x"), tools=tools, template=template)
            try:
                expected = engine.get_chat_template(template, tools)
            except ValueError:
                with pytest.raises(InvalidJob, match="chat_template: must be one of the model's: rag"):
                    templates.encode(chat)
            else:
                assert templates.encode(chat) == tokenizer.encode(expected, add_bos=False)


@pytest.mark.drawn
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("answer", ["the herd", " the", "\n\nthe", "x", "é"])
def test_an_answer_is_what_transformers_adds_to_its_prompt(family: Family, name: str, answer: str) -> None:
    """So it begins with a space where the model has written one, and nowhere else."""
    engine = family.engine
    prompt_ids = family.templates.encode(Chat(turns("the herd"), template=name))
    for ids in (engine.encode(answer, add_special_tokens=False), engine.encode("a" + answer)[2:]):
        whole, prompt = engine.decode([*prompt_ids, *ids]), engine.decode(prompt_ids)
        detokenizer = Detokenizer(family.tokenizer.pieces)
        found = "".join(map(detokenizer.write, ids)) + detokenizer.finish()
        assert prompt + found == whole
