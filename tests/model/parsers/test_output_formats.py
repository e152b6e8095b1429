"""What a model's outputs look like is told by its chat templates."""

import pytest

from llama_herd.model.parsers.formats import REASONING_FORMATS, TOOL_FORMATS, OutputFormats, tokens_in
from tests.model.text.templates import TEMPLATES

#: Of the templates of our tests: tools, reasoning.
SPOKEN_OF = {
    "deepseek_r1": ("", "think"),
    "granite": ("granite", ""),
    "harmony": ("", "harmony"),
    "llama_3": ("llama3", ""),
    "mistral": ("mistral", ""),
    "qwen_2_5": ("hermes", ""),
    "qwen_3": ("", "think"),
}
#: What the templates of models say besides: the lines that tell how to call, and of reasoning.
LINES = {
    "Qwen 3": (
        r"<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>",
        "hermes",
        "",
    ),
    "Qwen 3 Coder": ("<tool_call>\n<function=example>\n<parameter=a>\nvalue\n</parameter> arguments", "", ""),
    "GLM 4.5": ("<tool_call>{name}\n<arg_key>{key}</arg_key> arguments <think></think>", "", "think"),
    "Granite 3.3": (
        "<|start_of_role|>available_tools respond only with <|tool_call|> <think></think> <response>",
        "granite",
        "granite",
    ),
    "Granite 3.2": (
        "<|start_of_role|>tools 'Here is my thought process:' 'Here is my response:'",
        "granite",
        "granite_3_2",
    ),
    "Granite 4": (
        '<|start_of_role|> tools <tool_call>\n{"name": , "arguments": }\n</tool_call>',
        "hermes",
        "",
    ),
    "Phi 4 mini": ("'<|tool|>' + message['tools'] + '<|/tool|>' + '<|end|>'", "phi4_mini", ""),
    "Functionary 3.1": (
        '<function=example_function_name>{{"name": value}}</function> ipython',
        "functionary_v3_1",
        "",
    ),
    "Functionary 3.2": ("'>>>all\n' + message['content'] <|start_header_id|>", "functionary_v3_2", ""),
    "Mistral Small 3.2": ("'[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]'", "mistral_v11", ""),
    "Magistral": ("[THINK]Your thoughts[/THINK] [TOOL_CALLS] [ARGS]", "mistral_v11", "mistral"),
    "DeepSeek R1": (
        "'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + '\n```json\n' '</think>'",
        "deepseek_r1",
        "think",
    ),
    "DeepSeek 3.1": ("'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' '</think>'", "deepseek_v3_1", "think"),
    "Nemotron": ('<TOOLCALL>[{"name": "tool_name"}]</TOOLCALL>', "nemotron", ""),
    "Firefunction 2": ('functools[{"name": ...}]', "functools", ""),
    "gpt-oss": ('<|channel|>analysis "functions." + tool_call.name', "harmony", "harmony"),
}


def names(formats: OutputFormats) -> tuple[str, str]:
    tools, reasoning = formats.tools, formats.reasoning
    return "" if tools is None else tools.name, "" if reasoning is None else reasoning.name


@pytest.mark.parametrize("name", TEMPLATES)
def test_our_templates_say_what_their_models_write(name: str) -> None:
    assert names(OutputFormats.from_templates({"default": TEMPLATES[name]})) == SPOKEN_OF.get(name, ("", ""))


@pytest.mark.parametrize("name", LINES)
def test_what_templates_of_models_say_tells_their_formats(name: str) -> None:
    text, *expected = LINES[name]
    assert names(OutputFormats.from_templates({"default": "plain", "tool_use": text})) == tuple(expected)


def test_every_format_is_told_by_some_template() -> None:
    told = [tuple(one[1:]) for one in LINES.values()] + list(SPOKEN_OF.values())
    assert {tools for tools, _ in told if tools} == TOOL_FORMATS.keys()
    assert {reasoning for _, reasoning in told if reasoning} == REASONING_FORMATS.keys()


def test_a_named_format_counts_and_not_the_template() -> None:
    templates = {"default": TEMPLATES["qwen_2_5"]}
    assert names(OutputFormats.from_templates(templates, "llama3", "think")) == ("llama3", "think")
    assert names(OutputFormats.from_templates(templates, "none", "none")) == ("", "")


def test_marks_are_the_tokens_within_the_texts_of_a_format() -> None:
    assert tokens_in(TOOL_FORMATS["mistral_v11"].marks) == ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    assert tokens_in(TOOL_FORMATS["harmony"].openings) == ("<|start|>", "<|channel|>")
    formats = OutputFormats.from_templates({}, "deepseek_v3_1", "think")
    assert formats.marks == (
        *("<think>", "</think>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        *("<｜tool▁calls▁end｜>", "<｜tool▁sep｜>"),
    )
    assert OutputFormats().marks == ()


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("<|im_start|>assistant\n<think>\n", True), ("<think>\n\n</think>\n\n", False), ("hello", False)],
)
def test_a_prompt_that_ends_in_the_opening_mark_begins_the_reasoning(prompt: str, expected: bool) -> None:
    assert OutputFormats.from_templates({}, reasoning="think").begins_in_reasoning(prompt) == expected
    assert not OutputFormats().begins_in_reasoning(prompt)
