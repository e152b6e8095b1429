"""Takes one output apart as it comes: into reasoning, content and calls of tools."""

import json
import re
from collections.abc import Collection, Generator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

from llama_herd.model.parsers.formats import OutputFormats, ReasoningFormat, ToolFormat
from llama_herd.model.parsers.json_object import JsonObject

SPACE = " \t\n\r"


class TrimmedText:
    """Withholds white space at its end until something follows.

    White space beside a mark is dropped where the text begins or ends there. Between two texts that before
    the mark stays, and if there is none, that behind it.
    """

    def __init__(self) -> None:
        self._ready: list[str] = []
        self._waiting: list[str] = []  # white space
        self._is_empty = True
        self._follows_mark = False
        self._drops_space = False

    def write(self, text: str) -> None:
        if self._drops_space:
            text = text.lstrip(SPACE)
        words = text.rstrip(SPACE)
        if words:
            self._ready += [*self._waiting, words]
            self._waiting.clear()
            self._is_empty = self._follows_mark = self._drops_space = False
        if len(words) < len(text):
            self._waiting.append(text[len(words) :])

    def cut(self) -> None:
        """Note that a mark stands here in the text."""
        if self._is_empty:
            self._waiting.clear()
        self._follows_mark = True
        self._drops_space = self._is_empty or bool(self._waiting)

    def finish(self) -> None:
        """Note that the text has ended."""
        if not self._follows_mark:
            self._ready += self._waiting
        self._waiting.clear()

    def take(self) -> str:
        """Take the text that nothing can change any more, and that has not been taken before."""
        ready = "".join(self._ready)
        self._ready.clear()
        return ready


class MarkFinder:
    """Finds the first of some texts, and what may become one."""

    def __init__(self, texts: Collection[str]) -> None:
        self._any = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._heads = frozenset(text[:length] for text in texts for length in range(1, len(text)))
        self._longest = max(map(len, self._heads), default=0)

    def find(self, text: str, at: int) -> tuple[int, int] | None:
        """Where the first mark from `at` on begins and ends."""
        found = self._any.search(text, at)
        return None if found is None else found.span()

    def begun(self, text: str, at: int) -> int:
        """Where the end of a text begins that may become a mark; the length of the text if there is none."""
        for start in range(max(at, len(text) - self._longest), len(text)):
            if text[start] in self._heads and text[start:] in self._heads:
                return start
        return len(text)


_SPACE = re.compile(r"[ \t\n\r]*")
_NAME = re.compile(r"[A-Za-z0-9_.-]*")
#: The names of the member with the arguments; of several the first one counts.
ARGUMENTS = ("arguments", "parameters")

T = TypeVar("T")
#: Reads on, and waits with a `yield` where the text that has come does not say how it goes on.
Parsing = Generator[None, None, T]


@dataclass(frozen=True)
class ParsedCall:
    """One whole call of a tool."""

    name: str
    arguments: str  # the JSON text of an object, as the model wrote it


@dataclass(frozen=True)
class OutputDelta:
    """The reasoning, content and calls that the next piece of an output brings."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ParsedCall, ...] = ()


class OutputParser:
    """Takes an output apart into reasoning, content and calls.

        parser = OutputParser(OutputFormats.from_templates(tokenizer.chat_templates), ["get_weather"])
        deltas = [*map(parser.write, pieces), parser.finish()]

    However the output is cut into pieces, the joined deltas are the same. A call comes whole, when its last
    brace is there. What is no valid call of a tool that there is, is content, with its marks. White space
    beside marks is dropped where a text begins or ends there. The time is linear in the output.
    """

    def __init__(
        self,
        formats: OutputFormats,
        tool_names: Collection[str] = (),
        *,
        begins_in_reasoning: bool = False,
        is_parallel: bool = True,
    ) -> None:
        """Make a parser. Without `tool_names` it reads no call, and unless parallel one at most."""
        self._names = frozenset(tool_names)
        self._is_parallel = is_parallel
        self._text, self._at, self._is_finished = "", 0, False  # what has come, and how far it is read
        self._held: list[str] = []  # of what may be a call: what has been read
        self._reasoning, self._content = TrimmedText(), TrimmedText()
        self._calls: list[ParsedCall] = []
        tools = formats.tools if self._names else None
        self._reading = self._read(formats.reasoning, tools, begins_in_reasoning)

    def write(self, text: str) -> OutputDelta:
        """Read the next piece; return the reasoning, content and calls that it brings."""
        self._text, self._at = self._text[self._at :] + text, 0
        next(self._reading, None)
        return self._delta()

    def finish(self) -> OutputDelta:
        """Return what was withheld; call once, after the last piece."""
        self._is_finished = True
        next(self._reading, None)
        self._content.finish()
        return self._delta()

    def _delta(self) -> OutputDelta:
        calls, self._calls = tuple(self._calls), []
        return OutputDelta(self._reasoning.take(), self._content.take(), calls)

    def _read(
        self, reasoning: ReasoningFormat | None, tools: ToolFormat | None, begins_in_reasoning: bool
    ) -> Parsing[None]:
        """The whole way of reading: reasoning first, then content and calls in turn."""
        if reasoning is not None:
            yield from self._read_reasoning(reasoning, begins_in_reasoning)
        if tools is not None and tools.begins_open:
            yield from self._read_calls(tools, "")
        openings = () if tools is None else tools.openings
        marks = _marks((*openings, *(() if reasoning is None else reasoning.answer_marks)))
        while mark := (yield from self._read_until(marks, self._content)):
            if tools is not None and mark in openings:
                yield from self._read_calls(tools, mark)
            else:
                self._content.cut()

    def _read_reasoning(self, form: ReasoningFormat, is_begun: bool) -> Parsing[None]:
        """Reasoning at the beginning of an output, if there is some."""
        space = yield from self._read_all(_SPACE)
        if (yield from self._read_one((form.opening,))) or is_begun:
            self._reasoning.cut()
            yield from self._read_until(_marks((form.closing,)), self._reasoning)
            self._reasoning.cut()
            self._content.cut()
        else:
            self._content.write(space)

    def _read_calls(self, form: ToolFormat, opening: str) -> Parsing[None]:
        """Calls behind an opening mark. What is none of them, is content."""
        self._held = [opening]
        is_call = yield from (self._read_named(form) if form.shape == "named" else self._read_objects())
        if is_call:
            yield from self._read_space()
            while (yield from self._read_one(form.closings)):
                self._held.clear()
                yield from self._read_space()
        self._content.write("".join(self._held))
        self._held.clear()

    def _read_objects(self) -> Parsing[bool]:
        """Objects that name a tool, one or several, in a list or not. Whether the last one is a call."""
        yield from self._read_space()
        is_list = bool((yield from self._read_one(("[",))))
        while True:
            yield from self._read_space()
            found = yield from self._read_object()
            call = None if found is None else _call(found.members())
            if call is None or not self._add_call(call):
                return False
            yield from self._read_space()
            yield from self._read_one((",", ";"))
            yield from self._read_space()
            if (yield from self._peek()) != "{":
                break
        if is_list and (yield from self._read_one(("]",))):
            self._held.clear()
        return True

    def _read_named(self, form: ToolFormat) -> Parsing[bool]:
        """A name and an object. Whether they are a call."""
        yield from self._read_space()
        name = yield from self._read_all(_NAME)
        if form.no_call and name == form.no_call and (yield from self._read_one(("\n",))):
            self._held.clear()
            self._content.cut()
            return False
        if name not in self._names:
            return False
        yield from self._read_space()
        while (yield from self._read_one(form.between_marks)):
            yield from self._read_all(_NAME)
            yield from self._read_space()
        found = yield from self._read_object()
        return found is not None and self._add_call(ParsedCall(name, found.text))

    def _add_call(self, call: ParsedCall) -> bool:
        """Add a call to the next delta; False: there is no such tool."""
        if call.name not in self._names:
            return False
        self._held.clear()
        self._content.cut()
        self._calls.append(call)
        if not self._is_parallel:
            self._names = frozenset()
        return True

    def _read_until(self, marks: MarkFinder, told: TrimmedText) -> Parsing[str]:
        """Tell the text before the next of these marks, and read that; empty: there is none."""
        while True:
            found = marks.find(self._text, self._at)
            if found is not None:
                told.write(self._text[self._at : found[0]])
                self._at = found[1]
                return self._text[slice(*found)]
            end = len(self._text) if self._is_finished else marks.begun(self._text, self._at)
            told.write(self._text[self._at : end])
            self._at = end
            if self._is_finished:
                return ""
            yield

    def _read_object(self) -> Parsing[JsonObject | None]:
        """The object that comes next; None: it is none, or not whole."""
        found = JsonObject()
        while True:
            self._at = found.read(self._text, self._at)
            if found.is_whole or found.is_wrong or self._is_finished:
                self._held.append(found.text)
                return found if found.is_whole else None
            yield

    def _read_all(self, kind: re.Pattern[str]) -> Parsing[str]:
        """All characters of a kind that come next."""
        pieces = []
        while True:
            match = kind.match(self._text, self._at)
            piece = "" if match is None else match[0]
            pieces.append(piece)
            self._held.append(piece)
            self._at += len(piece)
            if self._at < len(self._text) or self._is_finished:
                return "".join(pieces)
            yield

    def _read_space(self) -> Parsing[None]:
        yield from self._read_all(_SPACE)

    def _read_one(self, texts: tuple[str, ...]) -> Parsing[str]:
        """The one of these texts that comes next; empty: none does, and nothing is read."""
        while True:
            for text in texts:
                if self._text.startswith(text, self._at):
                    self._held.append(text)
                    self._at += len(text)
                    return text
            if self._is_finished or not any(self._may_become(text) for text in texts):
                return ""
            yield

    def _may_become(self, text: str) -> bool:
        num = len(self._text) - self._at
        return num < len(text) and self._text.endswith(text[:num])

    def _peek(self) -> Parsing[str]:
        """The character that comes next, not read; empty: none does."""
        while self._at == len(self._text) and not self._is_finished:
            yield
        return self._text[self._at : self._at + 1]


@cache
def _marks(texts: tuple[str, ...]) -> MarkFinder:
    return MarkFinder(texts)


def _call(members: Mapping[str, str]) -> ParsedCall | None:
    """The call that an object describes; None: it is none."""
    name = _string(members.get("name", ""))
    arguments = next((members[key] for key in ARGUMENTS if key in members), "")
    if arguments.startswith('"'):  # some models write the object as a text
        arguments = _string(arguments).strip(SPACE)
    found = JsonObject()
    found.read(arguments, 0)
    return ParsedCall(name, arguments) if found.is_whole and found.text == arguments else None


def _string(value: str) -> str:
    """The text of a JSON string; empty: it is no string, or no UTF-8 could hold it."""
    text: str = json.loads(value) if value.startswith('"') else ""
    return "" if any("\ud800" <= char <= "\udfff" for char in text) else text
