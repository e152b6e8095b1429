"""Laws of grammars of whole outputs: whatever they let through, the parser reads as what was asked for."""

import json
import random
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from llama_herd.errors import InvalidJob
from llama_herd.model.parsers.formats import REASONING_FORMATS, TOOL_FORMATS, OutputFormats
from llama_herd.model.parsers.output_parser import OutputParser, ParsedCall
from llama_herd.model.text.helper import Helper
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.tasks.protocol.structured_outputs import OutputForm
from llama_herd.worker.engine.sampling.constraint import Constraint
from llama_herd.worker.engine.sampling.rules import masks_of
from llama_herd.worker.grammars.grammars import JUDGE, JUDGE_LIMITS, Grammars
from llama_herd.worker.grammars.whole_output import WholeOutput
from tests.examples import for_any, seeds
from tests.worker.grammars.random_schemas import random_schema

FORMATS = [name for name, form in TOOL_FORMATS.items() if not form.is_free]
MOST_IDS = 400


class BytesAndMarks:
    """A vocabulary of all bytes, of marks that are control tokens, and of an end."""

    def __init__(self, marks: Sequence[str]) -> None:
        self.pieces = (*(bytes([byte]) for byte in range(256)), *(b"" for _ in marks), b"")

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class Model(NamedTuple):
    """What a worker knows of a model: its formats, its marks that are control tokens, and grammars."""

    formats: OutputFormats
    mark_ids: dict[str, int]
    shown: tuple[bytes, ...]
    grammars: Grammars

    def parsed(self, ids: Sequence[int], names: Collection[str], is_begun: bool = False) -> "Parsed":
        text = b"".join(self.shown[one] for one in ids).decode(errors="replace")
        parser = OutputParser(self.formats, names, begins_in_reasoning=is_begun)
        deltas = [parser.write(text), parser.finish()]
        calls = [call for delta in deltas for call in delta.calls]
        reasoning = "".join(delta.reasoning for delta in deltas)
        return Parsed(reasoning, "".join(delta.content for delta in deltas), calls)


class Parsed(NamedTuple):
    reasoning: str
    content: str
    calls: list[ParsedCall]


class Models:
    """Models of each pair of formats, with their marks as control tokens and without."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str, bool], Model] = {}
        self.judge = Helper(JUDGE, JUDGE_LIMITS)

    def get(self, tools: str, reasoning: str, has_tokens: bool) -> Model:
        key = (tools, reasoning, has_tokens)
        if key not in self._made:
            formats = OutputFormats(REASONING_FORMATS.get(reasoning), TOOL_FORMATS.get(tools))
            marks = formats.marks if has_tokens else ()
            codec = BytesAndMarks(marks)
            end = len(codec.pieces) - 1
            tokenizer = Tokenizer(codec, None, frozenset({end}), {})
            shown = (*codec.pieces[:256], *(mark.encode() for mark in marks), b"")
            mark_ids = {mark: 256 + number for number, mark in enumerate(marks)}
            self._made[key] = Model(formats, mark_ids, shown, Grammars(tokenizer, 1, [self.judge]))
        return self._made[key]


MODELS = Models()


@pytest.fixture(scope="module", autouse=True)
def models() -> Iterator[Models]:
    yield MODELS
    MODELS.judge.close()


def allowed(constraint: Constraint) -> list[int]:
    (mask,) = masks_of([constraint])
    return [int(one) for one in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))]


def drawn(model: Model, form: OutputForm, rng: random.Random, first: str = "") -> tuple[list[int], bool]:
    """Ids drawn at random, some of them in words, and whether the output ends there."""
    (constraint,) = model.grammars.constraints(form, 1)
    ids, queue, words = list[int](), ids_of(model, first), words_of(model)
    while len(ids) < MOST_IDS and not constraint.is_over:
        if not queue and rng.random() < 0.3:
            queue = ids_of(model, rng.choice(words))
        choices = allowed(constraint)
        if len(choices) == 1 and choices[0] == len(model.shown) - 1:
            return ids, True
        if not queue and len(model.shown) - 1 in choices and rng.random() < 0.05:
            return ids, True
        token_id = queue.pop(0) if queue else rng.choice(choices)
        if token_id not in choices or token_id == len(model.shown) - 1:
            queue = []
            continue
        constraint.add(token_id)
        ids.append(token_id)
    return ids, constraint.is_over


def ids_of(model: Model, text: str) -> list[int]:
    """A text, marks that are control tokens as these."""
    ids: list[int] = []
    while text:
        mark = next((one for one in model.mark_ids if text.startswith(one)), "")
        ids += [model.mark_ids[mark]] if mark else text[0].encode()
        text = text[max(1, len(mark)) :]
    return ids


def words_of(model: Model) -> list[str]:
    tools, reasoning = model.formats.tools, model.formats.reasoning
    marks = () if tools is None else tools.openings
    closing = [] if reasoning is None else [reasoning.closing] * 4
    return [*marks, *closing, '{"name": "f", ', "f", "all", '"}', "\n", ">", "{}", "]"]


def tool(name: str, schema: object = None, **fields: object) -> dict[str, Any]:
    function = {"name": name, **({} if schema is None else {"parameters": schema}), **fields}
    return {"type": "function", "function": function}


RECORD = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "additionalProperties": False}


def record(rng: random.Random) -> dict[str, Any]:
    properties = {"a": random_schema(rng), "b": {"type": "string", "maxLength": 3}}
    closed = {"type": "object", "properties": properties, "required": ["a", "b"]}
    return {**closed, "additionalProperties": False}


def check_calls(calls: Sequence[ParsedCall], schemas: dict[str, Any]) -> None:
    for call in calls:
        Draft202012Validator(schemas[call.name]).validate(json.loads(call.arguments))


ALL_CASES = [*product(FORMATS, ["", "think"], [False, True])]
CASES = [pytest.param(*case, marks=[pytest.mark.slow] * (bool(case[1]) != case[2])) for case in ALL_CASES]


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(1, 10))
@pytest.mark.parametrize(("name", "reasoning", "has_tokens"), CASES)
def test_where_a_tool_must_be_called_there_is_nothing_but_calls(
    models: Models, name: str, reasoning: str, has_tokens: bool, seed: int
) -> None:
    model, rng = models.get(name, reasoning, has_tokens), random.Random(f"{seed} {name}")
    schemas = {"f": record(rng), "f2": {"type": "object"}, "other": record(rng)}
    tools, num_ended = [tool(one, schema) for one, schema in schemas.items()], 0
    for number, is_parallel in product(range(3), [False, True]):
        named = {"type": "function", "function": {"name": "f2"}}
        choice: Any = named if number == 2 else "required"
        is_begun = bool(reasoning) and number == 1
        output = WholeOutput.for_chat(
            model.formats,
            model.mark_ids,
            tools=tools,
            choice=choice,
            is_parallel=is_parallel,
            begins_in_reasoning=is_begun,
        )
        form = output.to_form()
        assert form is not None
        ids, is_over = drawn(model, form, rng)
        parsed = model.parsed(ids, schemas, is_begun)
        check_calls(parsed.calls, schemas)
        if is_over:
            num_ended += 1
            assert parsed.content == ""
            assert parsed.calls
            assert is_parallel or len(parsed.calls) == 1
            assert choice == "required" or {call.name for call in parsed.calls} == {"f2"}
    assert num_ended


@pytest.mark.parametrize("seed", seeds(1, 10))
@pytest.mark.parametrize(("name", "reasoning", "has_tokens"), CASES)
def test_behind_an_opening_mark_nothing_comes_but_a_call(
    models: Models, name: str, reasoning: str, has_tokens: bool, seed: int
) -> None:
    model, rng = models.get(name, reasoning, has_tokens), random.Random(f"{seed} {name}")
    schemas = {"f": RECORD, "f2": {"type": "object"}}
    tools, num_calls = [tool(one, schema) for one, schema in schemas.items()], 0
    opening = TOOL_FORMATS[name].openings[0]
    for is_parallel in [False, True] * 4:
        output = WholeOutput.for_chat(model.formats, model.mark_ids, tools=tools, is_parallel=is_parallel)
        form = output.to_form()
        assert form is not None
        ids, is_over = drawn(model, form, rng, rng.choice([opening, ""]))
        parsed = model.parsed(ids, schemas)
        check_calls(parsed.calls, schemas)
        num_calls += len(parsed.calls)
        assert is_parallel or len(parsed.calls) <= 1
        if is_over and has_tokens == (opening in model.mark_ids):
            assert opening not in parsed.content
    assert num_calls


ROLE = {
    "type": "object",
    "properties": {"role": {"enum": ["user"]}},
    "required": ["role"],
    "additionalProperties": False,
}
WRONG_ARGUMENTS = (
    '{"role":"admin"}',
    '{"r\\u006fle":"admin"}',
    '{"role":"user","role":"admin"}',
    '{"role": 1}',
    "{}",
)


def call_texts(model: Model, rng: random.Random) -> Iterator[str]:
    """Ways in which a model may write a call of `f` that does not follow `ROLE`."""
    form, space = model.formats.tools, rng.choice(("", " ", "\n", "\t \r\n"))
    assert form is not None
    for opening, text in product(("", *form.openings), WRONG_ARGUMENTS):
        name, key = rng.choice(('"name"', '"n\\u0061me"')), rng.choice(("arguments", "parameters"))
        called = f'{name}{space}:{space}"{rng.choice(("f", chr(92) + "u0066"))}"'
        members = rng.sample([called, f'"{key}":{space}{text}', '"x": {"name": "g"}'], rng.choice((2, 3)))
        rng.shuffle(members)
        found = space + "{" + f"{space},".join(members) + "}"
        between = rng.choice(("", "\n", *form.between_marks, form.between))
        yield from (opening + found, f"{opening}[{found}]", f"{opening}{space}f{between}{space}{text}")


@pytest.mark.parametrize("seed", seeds(1, 30))
@pytest.mark.parametrize("has_tokens", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_however_a_call_is_written_its_arguments_follow_the_schema(
    models: Models, name: str, has_tokens: bool, seed: int
) -> None:
    model, rng = models.get(name, "", has_tokens), random.Random(f"{seed} {name}")
    output = WholeOutput.for_chat(model.formats, model.mark_ids, tools=[tool("f", ROLE, strict=True)])
    form = output.to_form()
    assert form is not None
    (constraint,) = model.grammars.constraints(form, 1)
    for text in call_texts(model, rng):
        matcher, ids = constraint.matcher.deep_copy(), ids_of(model, text)
        if matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting():
            check_calls(model.parsed(ids, ["f"]).calls, {"f": ROLE})


@pytest.mark.long
@for_any(st.text(), st.sampled_from(ALL_CASES))
def test_text_without_marks_is_let_through(text: str, case: tuple[str, str, bool]) -> None:
    model = MODELS.get(*case)
    if any(mark[0] in text for mark in words_of(model)):
        return
    form = WholeOutput.for_chat(model.formats, model.mark_ids, tools=[tool("f")]).to_form()
    assert form is not None
    (constraint,) = model.grammars.constraints(form, 1)
    for byte in text.encode():
        constraint.add(byte)
    assert constraint.matcher.is_accepting()


@pytest.mark.parametrize("has_tokens", [False, True])
@pytest.mark.parametrize(
    ("name", "reasoning", "text", "follows"),
    [
        ("hermes", "think", "<think>a<tool_call>b</think>\n\nyes", True),
        ("hermes", "think", "<think>a</think>\n\n<tool_call>b", False),
        ("hermes", "think", "a <think> b <tool_call>c", False),
        ("llama3", "", 'a {"name": "f", "parameters": 1}', True),
        ("llama3", "", '{"name": "John", "parameters": 1}', True),
        ("llama3", "", '{"name": "f", "parameters": 1}', False),
        ("llama3", "", '{"name":"f","arguments":{"a": 2}}', True),
        (
            "phi4_mini",
            "",
            'functools[{"name": "f", "arguments": {"a": 1}}]<|/tool_call|>',
            True,
        ),
        ("phi4_mini", "", 'functools[{"name": "f", "arguments": {"a": 3}}]<|/tool_call|>', False),
        ("llama3", "", ' \n{"name": "f", "parameters": 1}', False),
        ("llama3", "think", '<think>a</think>{"name": "f", "parameters": 1}', False),
        (
            "llama3",
            "",
            '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "f", "parameters": {}}',
            True,
        ),
        ("functionary_v3_2", "", "all\nf\nso >>>all\nmore", True),
        ("functionary_v3_2", "", "f\nso", False),
        ("functionary_v3_2", "", "all\nso >>>so", False),
        ("mistral_v11", "mistral", "[THINK]a[/THINK]b[TOOL_CALLS]f[ARGS]{}", True),
    ],
)
def test_a_call_begins_where_the_parser_reads_one(
    models: Models, name: str, reasoning: str, text: str, follows: bool, has_tokens: bool
) -> None:
    model = models.get(name, reasoning, has_tokens)
    form = WholeOutput.for_chat(model.formats, model.mark_ids, tools=[tool("f", RECORD)]).to_form()
    assert form is not None
    (constraint,) = model.grammars.constraints(form, 1)
    ids = ids_of(model, text)
    if has_tokens and "</think>\n\nyes" in text:
        follows = False  # a mark that is a token is no part of free text
    assert all(map(constraint.matcher.consume_token, ids)) == follows
    assert constraint.matcher.is_accepting() == follows


ANSWERS = (
    OutputForm("json", json.dumps({"type": "array", "items": {"enum": [1, 2]}}), "a.json"),
    OutputForm("regex", "[ab]{2,5}", "a.regex"),
    OutputForm("choice", '["yes", "no"]', "a.choice"),
    OutputForm("grammar", 'start: "x" y*\ny: "y"', "a.grammar"),
)
PATTERNS = {"json": r"\[([12 ,\n\t])*\]", "regex": "[ab]{2,5}", "choice": "yes|no", "grammar": "xy*"}


@pytest.mark.drawn
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda form: form.kind)
@pytest.mark.parametrize("reasoning", REASONING_FORMATS)
@pytest.mark.parametrize("has_tokens", [False, True])
@pytest.mark.parametrize("is_begun", [False, True])
def test_an_answer_has_its_form_behind_the_reasoning(
    models: Models, answer: OutputForm, reasoning: str, has_tokens: bool, is_begun: bool
) -> None:
    model, rng = models.get("", reasoning, has_tokens), random.Random(f"{reasoning} {answer.kind}")
    output = WholeOutput.for_chat(model.formats, model.mark_ids, answer=answer, begins_in_reasoning=is_begun)
    form, num_ended, num_reasons = output.to_form(), 0, 0
    first = "thoughts" if is_begun else REASONING_FORMATS[reasoning].opening + "thoughts"
    assert form is not None
    for _ in range(10):
        ids, is_over = drawn(model, form, rng, rng.choice([first, ""]))
        parsed = model.parsed(ids, (), is_begun)
        num_reasons += bool(parsed.reasoning)
        if is_over:
            num_ended += 1
            assert re.fullmatch(PATTERNS[answer.kind], parsed.content.strip())
    assert num_ended
    assert num_reasons


@pytest.mark.long
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda form: form.kind)
@pytest.mark.parametrize("name", ["hermes", "llama3", "mistral"])
def test_beside_a_form_there_is_either_a_call_or_the_form(
    models: Models, answer: OutputForm, name: str
) -> None:
    model, rng = models.get(name, "", False), random.Random(name)
    form = WholeOutput.for_chat(
        model.formats, {}, tools=[tool("f", {"type": "object"})], answer=answer
    ).to_form()
    assert form is not None
    seen = set()
    for _ in range(24):
        ids, is_over = drawn(model, form, rng)
        parsed = model.parsed(ids, ["f"])
        if is_over:
            seen.add(bool(parsed.calls))
            assert (
                parsed.content == "" if parsed.calls else re.fullmatch(PATTERNS[answer.kind], parsed.content)
            )
    assert seen == {True, False}


def test_without_tools_or_reasoning_the_form_is_the_job_s(models: Models) -> None:
    formats = models.get("hermes", "", False).formats
    assert WholeOutput.for_chat(formats, {}).to_form() is None
    assert WholeOutput.for_chat(formats, {}, tools=[tool("f")], choice="none").to_form() is None
    assert WholeOutput.for_chat(formats, {}, answer=ANSWERS[0]).to_form() == ANSWERS[0]
    foreign = WholeOutput.for_chat(formats, {}, tools=[{"name": "f"}], answer=ANSWERS[0])
    assert foreign.to_form() == ANSWERS[0]


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        ({"properties": {"a": {"not": {"const": 1}}}}, "properties.a.not is not supported"),
        ({"type": "string"}, "must be the schema of an object"),
        (False, "must be the schema of an object"),
        ({"properties": {"a": {"type": "CANARY"}}}, "properties.a.type must be one or a list of null"),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_where_it_must_be(
    models: Models, schema: object, complaint: str
) -> None:
    model = models.get("hermes", "", False)

    def constraints(choice: str, **fields: object) -> list[Constraint]:
        tools = [tool("f"), tool("g", schema, **fields)]
        form = WholeOutput.for_chat(model.formats, {}, tools=tools, choice=choice).to_form()
        assert form is not None
        return model.grammars.constraints(form, 1)

    for choice, strict in (("required", None), ("auto", True)):
        with pytest.raises(InvalidJob) as caught:
            constraints(choice, strict=strict)
        (error,) = caught.value.fields
        assert error.field == "tools.1.function.parameters"
        assert complaint in error.message
        assert "CANARY" not in error.message
    (constraint,) = constraints("auto", strict=False)
    for byte in b'<tool_call>\n{"name": "g", "arguments": {"any": [null]}}\n</tool_call>':
        constraint.add(byte)
    assert constraint.matcher.is_accepting()


@pytest.mark.parametrize("tools", ["", "harmony"])
def test_a_model_without_a_format_for_calls_must_not_be_made_to(models: Models, tools: str) -> None:
    formats = models.get(tools, "", False).formats
    with pytest.raises(InvalidJob) as caught:
        WholeOutput.for_chat(formats, {}, tools=[tool("f")], choice="required")
    assert caught.value.fields[0].field == "tool_choice"
    with pytest.raises(InvalidJob) as caught:
        WholeOutput.for_chat(formats, {}, tools=[tool("f"), tool("g", strict=True)])
    assert caught.value.fields[0].field == "tools.1.function.strict"
    assert WholeOutput.for_chat(formats, {}, tools=[tool("f")]).to_form() is None


@pytest.mark.parametrize(("arguments", "are_right"), [("{}", True), ('{"a": 1}', False)])
def test_a_tool_that_names_no_parameters_takes_none(models: Models, arguments: str, are_right: bool) -> None:
    """As at OpenAI."""
    model = models.get("hermes", "", False)
    form = WholeOutput.for_chat(model.formats, {}, tools=[tool("f")], choice="required").to_form()
    assert form is not None
    (constraint,) = model.grammars.constraints(form, 1)
    call = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    assert (constraint.matcher.try_consume_tokens(list(call.encode())) == len(call)) is are_right


def test_a_wrong_answer_is_told_by_its_own_field(models: Models) -> None:
    model = models.get("hermes", "think", False)
    wrong = OutputForm("regex", "(CANARY", "structured_outputs.regex")
    form = WholeOutput.for_chat(model.formats, {}, tools=[tool("f")], answer=wrong).to_form()
    assert form is not None
    with pytest.raises(InvalidJob) as caught:
        model.grammars.constraints(form, 1)
    (error,) = caught.value.fields
    assert error.field == wrong.field
    assert "unclosed group" in error.message
    assert "CANARY" not in error.message
