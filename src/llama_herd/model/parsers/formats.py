"""How models write their reasoning and their calls of tools: two tables, a format a row, and one model's.

A format is known by what a chat template says. The first row that fits is a model's.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Self, TypeVar

#: In place of a format's name: the one that the templates speak of, or none.
AUTO = "auto"
NONE = "none"

#: What looks like a control token within the text of a mark.
_TOKEN = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")


@dataclass(frozen=True)
class ReasoningFormat:
    """Reasoning stands at the beginning of an output, between two marks."""

    name: str
    opening: str
    closing: str
    #: Marks around the answer, which belong to no text.
    answer_marks: tuple[str, ...] = ()
    #: Texts that all stand in a template of such a model. Empty: the opening mark.
    signs: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.opening, self.closing, *self.answer_marks)

    def is_told_by(self, template: str) -> bool:
        """Whether a chat template speaks of this format."""
        return all(sign in template for sign in self.signs or (self.opening,))


@dataclass(frozen=True)
class ToolFormat:
    """Calls stand behind an opening mark.

    They are an object with a name and arguments, a list of such objects, or a name and then the arguments.
    """

    name: str
    shape: Literal["object", "list", "named"]
    #: None contains another, unless at its end.
    openings: tuple[str, ...]
    #: Behind a call, as far as they are there.
    closings: tuple[str, ...] = ()
    #: Between a name and its arguments; a word may follow each.
    between_marks: tuple[str, ...] = ()
    #: An output may begin as if the opening mark had been written.
    begins_open: bool = False
    #: In place of a name: what follows is no call.
    no_call: str = ""
    #: Texts of which all stand in a template of such a model, and those of which none does.
    signs: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    # How models write several calls. Grammars hold outputs to it; what is read may differ in little things.
    arguments_key: str = "arguments"
    gap: str = ""  # around an object
    between: str = ""  # a name and its arguments
    ending: str = ""  # of a call, or of a list
    separator: str = ""  # of two calls
    reopening: str | None = None  # of a further call; None: the first opening mark
    last_ending: str = ""  # of all calls
    is_free: bool = False  # grammars know nothing of it

    @property
    def marks(self) -> tuple[str, ...]:
        return (*self.openings, *self.closings, *self.between_marks)

    def is_told_by(self, template: str) -> bool:
        """Whether a chat template speaks of this format."""
        text = template.replace("\\", "")  # before quotes within Jinja's strings
        return all(sign in text for sign in self.signs) and not any(one in text for one in self.lacks)


_REASONING = (
    ReasoningFormat(
        "harmony",
        "<|channel|>analysis<|message|>",
        "<|end|>",
        answer_marks=("<|start|>assistant<|channel|>final<|message|>", "<|channel|>final<|message|>"),
        signs=("<|channel|>analysis",),
    ),
    ReasoningFormat(
        "granite",
        "<think>",
        "</think>",
        answer_marks=("<response>", "</response>"),
        signs=("<think>", "<response>"),
    ),
    ReasoningFormat("granite_3_2", opening="Here is my thought process:", closing="Here is my response:"),
    ReasoningFormat("mistral", "[THINK]", "[/THINK]"),
    ReasoningFormat("think", "<think>", "</think>", signs=("</think>",)),
)

_TOOLS = (
    ToolFormat(
        "mistral_v11",
        "named",
        ("[TOOL_CALLS]",),
        between="[ARGS]",
        between_marks=("[ARGS]", "[CALL_ID]"),
        signs=("[TOOL_CALLS]", "[ARGS]"),
    ),
    ToolFormat("mistral", "list", ("[TOOL_CALLS]",), signs=("[TOOL_CALLS]",)),
    ToolFormat(
        "functionary_v3_2",
        "named",
        (">>>",),
        between="\n",
        begins_open=True,
        no_call="all",
        signs=(">>>all",),
    ),
    ToolFormat(
        "functionary_v3_1",
        "named",
        ("<function=",),
        ("</function>",),
        ending="</function>",
        between=">",
        between_marks=(">",),
        signs=("<function=",),
        lacks=("<parameter=",),
    ),
    ToolFormat(
        "deepseek_r1",
        "named",
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        ),
        ("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        ending="\n```<｜tool▁call▁end｜>",
        separator="\n",
        reopening="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
        last_ending="<｜tool▁calls▁end｜>",
        between="\n```json\n",
        between_marks=("```",),
        signs=("<｜tool▁calls▁begin｜>", "```json"),
    ),
    ToolFormat(
        "deepseek_v3_1",
        "named",
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁call▁begin｜>"),
        ("<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        ending="<｜tool▁call▁end｜>",
        reopening="<｜tool▁call▁begin｜>",
        last_ending="<｜tool▁calls▁end｜>",
        between="<｜tool▁sep｜>",
        between_marks=("<｜tool▁sep｜>",),
        signs=("<｜tool▁calls▁begin｜>",),
    ),
    ToolFormat(
        "harmony",
        "named",
        (
            "<|start|>assistant<|channel|>commentary to=functions.",
            "<|channel|>commentary to=functions.",
            "<|start|>assistant to=functions.",
        ),
        ("<|call|>",),
        is_free=True,
        between_marks=("<|channel|>", "<|constrain|>", "json", "<|message|>"),
        signs=("<|channel|>", '"functions.'),
    ),
    ToolFormat(
        "nemotron",
        "list",
        ("<TOOLCALL>",),
        ("</TOOLCALL>",),
        ending="</TOOLCALL>",
        signs=("<TOOLCALL>",),
    ),
    ToolFormat(
        "hermes",
        "object",
        ("<tool_call>",),
        ("</tool_call>",),
        ending="</tool_call>",
        gap="\n",
        separator="\n",
        signs=("<tool_call>", '"arguments":'),
        lacks=("<arg_key>", "<parameter="),
    ),
    ToolFormat(
        "granite",
        "list",
        ("<|tool_call|>", "<tool_call>"),
        ("</tool_call>",),
        signs=("<|start_of_role|>", "tools"),
    ),
    ToolFormat(
        "phi4_mini",
        "list",
        ("<|tool_call|>", "functools"),
        ("<|/tool_call|>",),
        ending="<|/tool_call|>",
        signs=("<|/tool|>",),
    ),
    ToolFormat("functools", "list", ("functools",), signs=("functools[",)),
    ToolFormat(
        "llama3",
        "object",
        ("<|python_tag|>",),
        arguments_key="parameters",
        separator="; ",
        reopening="",
        begins_open=True,
        signs=("ipython",),
    ),
)

#: The formats by name, in the order in which they are looked for.
REASONING_FORMATS = {form.name: form for form in _REASONING}
TOOL_FORMATS = {form.name: form for form in _TOOLS}


def tokens_in(marks: Iterable[str]) -> tuple[str, ...]:
    """The texts within marks that may be control tokens, each once."""
    return tuple(dict.fromkeys(token for mark in marks for token in _TOKEN.findall(mark)))


F = TypeVar("F", ReasoningFormat, ToolFormat)


@dataclass(frozen=True)
class OutputFormats:
    """How a model writes reasoning and calls; None where it does not."""

    reasoning: ReasoningFormat | None = None
    tools: ToolFormat | None = None

    @classmethod
    def from_templates(cls, templates: Mapping[str, str], tools: str = AUTO, reasoning: str = AUTO) -> Self:
        """The formats of these names, or those that a model's chat templates, Jinja by name, speak of."""
        texts = tuple(templates.values())
        return cls(_chosen(REASONING_FORMATS, reasoning, texts), _chosen(TOOL_FORMATS, tools, texts))

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that may be control tokens: the text of an output has to show them."""
        reasoning = () if self.reasoning is None else self.reasoning.marks
        return tokens_in((*reasoning, *(() if self.tools is None else self.tools.marks)))

    def begins_in_reasoning(self, prompt: str) -> bool:
        """Whether a prompt ends in the opening mark of reasoning, so that an output goes on there."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning.opening)

    def ends_reasoning(self, prompt: str) -> bool:
        """Whether a prompt ends in the closing mark of reasoning, so that none comes."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning.closing)


def _chosen(formats: Mapping[str, F], name: str, templates: tuple[str, ...]) -> F | None:
    if name in (AUTO, NONE):
        told = (form for form in formats.values() if any(map(form.is_told_by, templates)))
        return next(told, None) if name == AUTO else None
    return formats[name]
