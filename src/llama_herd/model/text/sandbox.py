"""Renders a chat template in jinja2's sandbox: the program `python -m llama_herd.model.text.sandbox FD`.

jinja2 keeps a template from reaching Python, but not from taking time and memory without end: the kernel
does.
A request is what is to be done with which template, and the template's source or its variables.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Literal, NoReturn

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from llama_herd.model.text.helper import HelperAnswer, HelperLimits, answer_requests

REFUSE = "raise_exception"
#: What templates ask for the date; among a chat's variables it is the time that they are to be told.
CLOCK = "strftime_now"


class TemplateRefusal(Exception):
    """The template has called `raise_exception`."""


class GenerationBlock(Extension):
    """`{% generation %}`: says for a training what an assistant wrote; its text is what stands in it."""

    tags = {"generation"}  # noqa: RUF012 -- as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


class PlainNamespace(Namespace):
    """jinja2's namespace without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # "self" is a name, too
        self, *given = args
        attributes = dict(*given, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class PlainDict:
    """`dict` in a template: a function, not Python's class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class Sandbox:
    """The templates of a model, in the environment that they are written for (transformers')."""

    def __init__(self, limits: HelperLimits) -> None:
        self._limits = limits
        self._environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"]
        )
        self._environment.filters["tojson"] = _to_json
        self._environment.globals |= {
            REFUSE: _refuse,
            CLOCK: _clock(None),
            "dict": PlainDict(),
            "namespace": PlainNamespace,
        }
        self._templates: dict[str, Template] = {}
        self._reasons: set[object] = set()

    def compile(self, name: str, source: str) -> HelperAnswer:
        tree = self._environment.parse(source)
        self._reasons |= {
            call.args[0].value
            for call in tree.find_all(nodes.Call)
            if isinstance(call.node, nodes.Name) and call.node.name == REFUSE
            if call.args and isinstance(call.args[0], nodes.Const)
        }
        self._templates[name] = self._environment.from_string(tree)
        return HelperAnswer("ready")

    def render(self, name: str, variables: Mapping[str, Any]) -> HelperAnswer:
        clock = {CLOCK: _clock(variables.get(CLOCK))}
        pieces, num_chars = [], 0
        for piece in self._templates[name].generate({**variables, **clock}):
            num_chars += len(piece)
            if num_chars > self._limits.max_chars:
                return HelperAnswer("limit", f"writes more than {self._limits.max_chars:,} characters")
            pieces.append(piece)
        return HelperAnswer("text", "".join(pieces))

    def answer(self, work: Literal["compile", "render"], name: str, given: Any) -> HelperAnswer:
        """Do the work: "text" is the rendered one, "refused" and "failed" quote no variable."""
        try:
            return self.compile(name, given) if work == "compile" else self.render(name, given)
        except MemoryError:
            raise  # the helper knows its limit
        except TemplateRefusal as error:
            # A reason that the template puts together may quote a message.
            return HelperAnswer("refused", str(error) if str(error) in self._reasons else "")
        except TemplateSyntaxError as error:
            return HelperAnswer("failed", f"line {error.lineno}: {error.message}")
        except Exception as error:  # templates raise anything; the text may quote a message
            return HelperAnswer("failed", type(error).__name__)


def _refuse(reason: str) -> NoReturn:
    raise TemplateRefusal(reason)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError("a namespace takes no name that begins with an underscore")


def _clock(now_ms: object) -> Callable[[str], str]:
    """Make templates' `strftime_now` for a time in unix milliseconds, in local time; None: the present."""

    def strftime_now(form: str) -> str:
        now = datetime.now() if now_ms is None else datetime.fromtimestamp(float(str(now_ms)) / 1000)
        return now.strftime(form)

    return strftime_now


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write a value as JSON; jinja2's own filter would escape what HTML gives a meaning to."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


if __name__ == "__main__":
    answer_requests(lambda limits: Sandbox(limits).answer)
