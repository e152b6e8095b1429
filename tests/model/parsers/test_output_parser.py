"""Laws of the parser of outputs: what it tells does not depend on the pieces in which an output comes."""

import json
import random
import sys
import tracemalloc
from collections.abc import Callable, Collection, Iterable
from itertools import combinations, pairwise
from types import FrameType
from typing import NamedTuple

import pytest
from hypothesis import strategies as st

from llama_herd.model.parsers.formats import REASONING_FORMATS, TOOL_FORMATS, OutputFormats, ToolFormat
from llama_herd.model.parsers.json_object import MAX_DEPTH
from llama_herd.model.parsers.output_parser import OutputParser
from tests.examples import for_any
from tests.model.parsers.recorded_outputs import NAMES, RECORDED, Recorded


class Told(NamedTuple):
    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]


def told(parser: OutputParser, pieces: Iterable[str]) -> Told:
    deltas = [*map(parser.write, pieces), parser.finish()]
    return Told(
        "".join(one.reasoning for one in deltas),
        "".join(one.content for one in deltas),
        tuple((call.name, call.arguments) for one in deltas for call in one.calls),
    )


def formats(tools: str = "", reasoning: str = "") -> OutputFormats:
    return OutputFormats(REASONING_FORMATS.get(reasoning), TOOL_FORMATS.get(tools))


def parser(tools: str = "", reasoning: str = "", names: Collection[str] = ("f", "g")) -> OutputParser:
    return OutputParser(formats(tools, reasoning), names)


def parser_of(recorded: Recorded, *, is_parallel: bool = True) -> OutputParser:
    return OutputParser(
        formats(recorded.format, recorded.reasoning_format),
        NAMES,
        begins_in_reasoning=recorded.begins_in_reasoning,
        is_parallel=is_parallel,
    )


@pytest.mark.parametrize("recorded", RECORDED, ids=range(len(RECORDED)))
def test_recorded_outputs_are_read_as_meant_wherever_they_are_cut(recorded: Recorded) -> None:
    text, meant = recorded.text, Told(recorded.reasoning, recorded.content, recorded.calls)
    assert told(parser_of(recorded), [text]) == meant
    assert told(parser_of(recorded), text) == meant
    for at in range(len(text)):
        assert told(parser_of(recorded), [text[:at], text[at:]]) == meant


@pytest.mark.parametrize("recorded", [one for one in RECORDED if one.calls], ids=lambda one: one.format)
def test_where_one_call_may_come_any_other_is_content(recorded: Recorded) -> None:
    (first, *others), text = recorded.calls, recorded.text
    whole = told(parser_of(recorded, is_parallel=False), [text])
    assert whole.calls == (first,)
    assert all(name in whole.content and arguments in whole.content for name, arguments in others)
    assert others or whole == told(parser_of(recorded), [text])
    for at in range(len(text)):
        assert told(parser_of(recorded, is_parallel=False), [text[:at], text[at:]]) == whole


def test_every_format_has_recorded_outputs() -> None:
    assert {one.format for one in RECORDED} == TOOL_FORMATS.keys()
    assert {one.reasoning_format for one in RECORDED if one.reasoning_format} == REASONING_FORMATS.keys()


@pytest.mark.parametrize("form", TOOL_FORMATS.values(), ids=lambda form: form.name)
def test_no_mark_hides_another(form: ToolFormat) -> None:
    """Else what is found first would depend on the pieces."""
    for one, other in combinations(form.openings, 2):
        assert one not in other.removesuffix(one)
        assert other not in one.removesuffix(other)
    for texts in (form.openings, form.closings, form.between_marks):
        assert not [1 for one in texts for other in texts if one != other and one.startswith(other)]
    for reasoning in REASONING_FORMATS.values():
        every = {*reasoning.answer_marks, *form.openings}
        assert not [
            1
            for one in every
            for other in every
            if one != other and one in other[:-1] and not other.endswith(one)
        ]


PARTS = [
    *sorted({mark for form in TOOL_FORMATS.values() for mark in form.marks}),
    *sorted({mark for form in REASONING_FORMATS.values() for mark in form.marks}),
    *('{"name": "f", "arguments": {"a": [1, "}"]}}', '{"name": "g", "parameters": {}}', '{"a": 1}', "[", "]"),
    *(
        '{"name": "no", "arguments": {}}',
        "f",
        "g",
        "all",
        "\n",
        " ",
        ",",
        ";",
        "{",
        '"',
        "\\",
        "\\u12",
        "word",
    ),
    *("\x00", "é😀", "1e5", "tru", "json", "[" * (MAX_DEPTH + 5), '{"name": "f", "arguments": "{}"}'),
]


@st.composite
def outputs(draw: st.DrawFn) -> tuple[str, list[int]]:
    """A text of marks, halves of marks and other hostile pieces, and where it is cut."""
    parts = draw(st.lists(st.sampled_from(PARTS) | st.text(max_size=4), max_size=12))
    halves = [
        part[: draw(st.integers(1, len(part)))] if part and draw(st.booleans()) else part for part in parts
    ]
    text = "".join(halves)
    return text, sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))


def pieces(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *cuts, len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]


@for_any(
    outputs(),
    st.sampled_from(["", *TOOL_FORMATS]),
    st.sampled_from(["", *REASONING_FORMATS]),
    st.booleans(),
    st.booleans(),
)
def test_any_text_comes_to_the_same_wherever_it_is_cut(
    output: tuple[str, list[int]], tools: str, reasoning: str, is_begun: bool, is_parallel: bool
) -> None:
    text, cuts = output

    def read(cut: Iterable[str]) -> Told:
        one = OutputParser(
            formats(tools, reasoning), ("f", "g"), begins_in_reasoning=is_begun, is_parallel=is_parallel
        )
        return told(one, cut)

    whole = read([text])
    assert read(text) == whole
    assert read(pieces(text, cuts)) == whole
    assert is_parallel or len(whole.calls) < 2
    for name, arguments in whole.calls:
        assert name in ("f", "g")
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize("tools", ["", *TOOL_FORMATS])
@pytest.mark.parametrize("text", ["", " \n", "plain text", " {} <b> [1] ", "a\n\n"])
def test_text_without_marks_is_content_as_it_is(tools: str, text: str) -> None:
    assert told(parser(tools), text) == Told("", text, ())


@pytest.mark.parametrize("recorded", RECORDED, ids=range(len(RECORDED)))
def test_without_tools_calls_are_content(recorded: Recorded) -> None:
    if not recorded.reasoning_format:
        assert told(parser(recorded.format, names=()), recorded.text) == Told("", recorded.text, ())


@pytest.mark.parametrize("recorded", [one for one in RECORDED if one.calls], ids=lambda one: one.format)
def test_a_call_is_told_with_its_last_brace_and_a_half_one_is_content(recorded: Recorded) -> None:
    text, one = recorded.text, parser_of(recorded)
    num_written = next(end for end in range(1, len(text) + 1) if one.write(text[end - 1]).calls)
    assert text[num_written - 1] == "}"
    half = told(parser_of(recorded), [text[: num_written - 1]])
    assert not half.calls
    assert half.content.endswith(text[num_written - 8 : num_written - 1])
    assert recorded.calls[0][0] in half.content


@pytest.mark.parametrize(
    ("text", "content", "num_calls"),
    [
        ('<tool_call>{"name": "h", "arguments": {}}</tool_call>', None, 0),
        ('<tool_call>{"name": "f", "arguments": 1}</tool_call>', None, 0),
        ('<tool_call>{"name": "f", "arguments": "1"}</tool_call>', None, 0),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}</tool_call>', None, 0),
        ('<tool_call>{"name": ["f"], "arguments": {}}</tool_call>', None, 0),
        ('<tool_call>{"name": ' + "1" * 5000 + ', "arguments": {}}</tool_call>', None, 0),
        ('<tool_call>{"name": "f", "arguments": {"a": 01}}', None, 0),
        ('<tool_call>{"name": "f", "arguments": {"a": "\n"}}', None, 0),
        ('<tool_call>{"name": "f", "arguments": ' + '{"a":' * MAX_DEPTH + "{}" + "}" * MAX_DEPTH, None, 0),
        ('<tool_call><tool_call>{"name": "f", "arguments": {}}', "<tool_call>", 1),
        ('<tool_call>{"name": <tool_call>{"name": "f", "arguments": {}}', '<tool_call>{"name":', 1),
        ('a \n<tool_call>{"name": "f", "arguments": {}}\n</tool_call>\n\nb', "a \nb", 1),
        ('a<tool_call>{"name": "f", "arguments": {}}\n</tool_call>\n', "a", 1),
        ('\n <tool_call>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]', "", 2),
        ('<tool_call>{"name": "f", "arguments": {}}x</tool_call>', "x</tool_call>", 1),
    ],
)
def test_what_is_no_call_is_content_with_its_marks(text: str, content: str | None, num_calls: int) -> None:
    read = told(parser("hermes"), text)
    assert read.content == (text if content is None else content)
    assert len(read.calls) == num_calls


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nhm\n</think>\n\nyes\n", "hm", "yes\n"),
        (" \n<think>hm", "hm", ""),
        ("<think>hm </thi", "hm </thi", ""),
        ("<think>\n\n</think>\n\nyes", "", "yes"),
        ("so <think>hm</think>", "", "so <think>hm</think>"),
        ("<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
        (" <thin", "", " <thin"),
        ('<think>a<tool_call>{"name": "f", "arguments": {}}</think>', None, ""),
    ],
)
def test_reasoning_stands_at_the_beginning_and_once(text: str, reasoning: str | None, content: str) -> None:
    read = told(parser("hermes", "think"), text)
    assert read == Told(
        text[len("<think>") : -len("</think>")] if reasoning is None else reasoning, content, ()
    )


@pytest.mark.parametrize("text", ["hm</think>yes", "\n<think>hm</think>yes"])
def test_reasoning_that_the_prompt_began_goes_on(text: str) -> None:
    one = OutputParser(formats(reasoning="think"), begins_in_reasoning=True)
    assert told(one, text) == Told("hm", "yes", ())


def num_steps(work: Callable[[], object]) -> int:
    """How many functions, of Python and of C, it calls."""
    num = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal num
        num += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return num


HOSTILE = {
    "marks": lambda num: "<tool_call>" * num,
    "halves": lambda num: "<tool_call" * num,
    "spaces": lambda num: "<tool_call>" + " \n" * num,
    "deep": lambda num: '<tool_call>{"a":' + "[" * num,
    "flat": lambda num: '<tool_call>{"name": "f", "arguments": {"a": [' + "1," * num + "1]}}",
    "escapes": lambda num: '<tool_call>{"name": "f", "arguments": {"a": "' + '\\"' * num + '"}}',
    "calls": lambda num: '<tool_call>[{"name": "f", "arguments": {}}]' * num,
    "members": lambda num: "<tool_call>{" + '"name": 1,' * num,
    "long number": lambda num: '<tool_call>{"name": ' + "1" * num + "}",
}


@pytest.mark.drawn(1)
@pytest.mark.parametrize("size", [1, 4, 1 << 30])
@pytest.mark.parametrize("name", HOSTILE)
def test_the_work_is_linear_in_the_output(name: str, size: int) -> None:
    def work(num: int) -> Callable[[], object]:
        text = HOSTILE[name](num)
        cut = [text[at : at + size] for at in range(0, len(text), size)]
        return lambda: told(parser("hermes"), cut)

    assert num_steps(work(1200)) <= 4.4 * num_steps(work(300)) + 200


def num_bytes_kept(num_pieces: int) -> int:
    """The bytes that a parser still holds after so many pieces of an answer."""
    one = parser("hermes", "think")
    one.write("<think>so</think>")
    tracemalloc.start()
    for _ in range(num_pieces):
        one.write("word <b> ")
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return num_bytes


@pytest.mark.long
def test_what_has_been_told_is_not_kept() -> None:
    """Else each piece would take longer than the one before."""
    more = num_bytes_kept(20_000) - num_bytes_kept(1_000)
    assert more < 19_000  # one byte of each piece would be as much


@pytest.mark.parametrize("tools", ["", *TOOL_FORMATS])
def test_no_text_raises(tools: str) -> None:
    rng = random.Random(tools)
    for _ in range(50):
        text = "".join(rng.choice(PARTS)[: rng.choice([1, 2, 9, 99])] for _ in range(rng.randrange(40)))
        told(parser(tools, rng.choice(["", *REASONING_FORMATS])), [text])
