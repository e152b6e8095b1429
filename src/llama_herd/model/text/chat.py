"""Conversations to prompts, by the chat templates of a model's files."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from llama_herd.error_code import ErrorCode
from llama_herd.errors import FieldError, GenerationError, InvalidJob, ModelFileError
from llama_herd.model.reading.metadata import quoted
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.helper import DEFAULT_LIMITS, Helper, HelperAnswer, HelperLimits, HelperPool
from llama_herd.model.text.sandbox import CLOCK
from llama_herd.model.text.template_files import DEFAULT, TOOL_USE
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.text.turns import PROBES, TRUSTED_ROLES, Skills, shaped

#: The helper's program.
SANDBOX = "llama_herd.model.text.sandbox"


class Renderer:
    """The templates of a model and the helper that renders them, for one thread at a time.

        renderer = Renderer({"default": "Hello {{ name }}"}, HelperLimits())
        renderer.render("default", {"name": "herd"})

    One whose helper went over a limit starts the next at once, so that who broke it waits for that, and
    nobody else does.
    """

    def __init__(self, sources: Mapping[str, str], limits: HelperLimits) -> None:
        self._sources = sources
        self._helper = Helper(SANDBOX, limits)

    def start(self) -> None:
        """Start the helper. Raises ModelFileError when it cannot compile a template.

        Where that took too long: GenerationError, as no template is at fault then.
        """
        name, started = self._start()
        if started.kind != "ready":
            self.close()
            which = "" if name == DEFAULT else f" {quoted(name)}"
            complaint = f"the chat template{which} {_explained(started)}"
            if started.kind == "late":
                raise started.error(ErrorCode.TEMPLATE_ERROR, complaint)
            raise ModelFileError(f"{complaint}. Mend it or leave it out.")

    def render(self, name: str, variables: Mapping[str, object]) -> str:
        """The text. Raises GenerationError, which quotes nothing of the variables.

        "template_error", or one to try again if the helper gave no answer in time.
        """
        _, answer = self._start()
        if answer.kind == "ready":
            answer = self._helper.ask(("render", name, variables))
            self._start()
        if answer.kind == "text":
            return answer.text
        raise answer.error(ErrorCode.TEMPLATE_ERROR, f"messages: the chat template {_explained(answer)}")

    def close(self) -> None:
        self._helper.close()

    def _start(self) -> tuple[str, HelperAnswer]:
        """Start the helper with the templates, unless it runs: "ready", or what is wrong with one."""
        name, is_new = DEFAULT, not self._helper.is_running
        started = self._helper.start()
        if is_new and started.kind == "ready":
            for name, source in self._sources.items():
                started = self._helper.ask(("compile", name, source))
                if started.kind != "ready":
                    break
        return name, started


def _explained(answer: HelperAnswer) -> str:
    """The failure of a template as a text that can be printed and stored."""
    reason = answer.text.encode(errors="backslashreplace").decode()
    if answer.is_over_limit:
        return reason
    verb = "refuses them" if answer.kind == "refused" else "fails"
    return f"{verb}: {reason}" if reason else verb


#: A mark is a low surrogate: a well-formed text holds none, and two side by side never form a pair.
FIRST_MARK = 0xDC00
MAX_MARKS = 0x3FF
#: Keeps what a message says from being a control token, and is no part of any text.
BREAK = "\udfff"

_MARK = re.compile("([\udc00-\udffe])")
_SURROGATE = re.compile("[\ud800-\udfff]")


class ControlMarks:
    """Marks for control tokens that stand in the sources of a model's templates, and for BOS and its like."""

    def __init__(self, sources: Mapping[str, str], control_tokens: ControlTokens) -> None:
        """Choose the marks. Raises ModelFileError when there are more control tokens than marks."""
        sources = {name: without_marks(source) for name, source in sources.items()}
        roles = set(control_tokens.roles.values())
        tokens = [
            token
            for token in control_tokens.ids
            if token in roles or any(token in source for source in sources.values())
        ]
        if len(tokens) > MAX_MARKS:
            raise ModelFileError(f"the chat templates name {len(tokens)} control tokens, limit {MAX_MARKS}.")
        self._marks = {token: chr(FIRST_MARK + number) for number, token in enumerate(tokens)}
        self._ids = {mark: control_tokens.ids[token] for token, mark in self._marks.items()}
        #: Marks of tokens that a template looks for in texts, such as the end of a turn's reasoning.
        self._sought = {
            token: mark
            for token, mark in self._marks.items()
            if any(_seeks(source, token) for source in sources.values())
        }
        self.sources = {name: self._marked(source) for name, source in sources.items()}
        self.roles = {role: self._marked(token) for role, token in control_tokens.roles.items()}

    def answer(self, text: str, protect: Callable[[str], str]) -> str:
        """The text of an assistant's turn, protected but for marks of tokens that a template seeks."""
        if not self._sought:
            return protect(text)
        tokens = sorted(self._sought, key=len, reverse=True)
        parts = re.split(f"({'|'.join(map(re.escape, tokens))})", text)
        return "".join(self._sought[part] if at % 2 else protect(part) for at, part in enumerate(parts))

    def split(self, text: str) -> Iterator[int | str]:
        """The ids that the marks of a rendered text stand for, and the texts between them."""
        for part in _MARK.split(text):
            if part:
                yield self._ids.get(part, part)

    def _marked(self, text: str) -> str:
        for token in sorted(self._marks, key=len, reverse=True):
            text = text.replace(token, self._marks[token])
        return text


def _seeks(source: str, token: str) -> bool:
    """Whether a template asks for a token in a text, or cuts a text there."""
    literal = rf"""(?:'{re.escape(token)}'|"{re.escape(token)}")"""
    return re.search(rf"split\(\s*{literal}|{literal}\s+(?:not\s+)?in\b", source) is not None


class Breaks:
    """Tells control tokens that a template puts together from parts from those that a message spells.

    Phi-3's template writes '<|' + message.role + '|>', which no mark can stand for. So a break goes into
    whatever a message spells, and whole control tokens in the rendered text are the template's.
    """

    def __init__(self, control_tokens: ControlTokens) -> None:
        self._ids = control_tokens.ids
        tokens = sorted((token for token in self._ids if len(token) > 1), key=len, reverse=True)
        self._token = re.compile(f"({'|'.join(map(re.escape, tokens))})")
        self._starts = {token[:end] for token in tokens for end in range(1, len(token))}
        self._ends = {token[start:] for token in tokens for start in range(1, len(token))}
        self._longest = max(map(len, tokens), default=0)

    def protect(self, text: str) -> str:
        """A message's text with breaks wherever it spells a control token, or could be a part of one."""
        text = self._token.sub(lambda found: BREAK.join(found[0]), text)
        core = text.strip()
        lead, tail = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
        if any(core[:length] in self._ends for length in range(1, self._longest)):
            core = BREAK + core
        if any(core[-length:] in self._starts for length in range(1, self._longest)):
            core += BREAK
        return lead + core + tail if core else text

    def split(self, text: str) -> Iterator[int | str]:
        """The ids of the control tokens that a template has put together, and the texts between them."""
        for part in self._token.split(text):
            if part:
                yield self._ids.get(part, part.replace(BREAK, ""))


def without_marks(text: str) -> str:
    """A text in which nothing can be taken for a mark."""
    return _SURROGATE.sub("\ufffd", text)


@dataclass(frozen=True)
class Chat:
    """A chat to be rendered, with the variables of transformers' `apply_chat_template`: all of it JSON."""

    messages: Sequence[Mapping[str, object]]
    tools: Sequence[Mapping[str, object]] | None = None
    documents: Sequence[Mapping[str, object]] | None = None
    options: Mapping[str, object] = field(default_factory=dict)  # variables of the template's own
    now_ms: int | None = None  # the date that templates write, unix milliseconds; None: the present
    template: str | None = None  # its name; None: the one for tools if there are some, else the default


class ChatTemplates(AbstractContextManager["ChatTemplates"]):
    """The chat templates of a model, rendered in helper processes that cannot hang or bloat this one.

        with ChatTemplates(tokenizer.chat_templates, tokenizer, control_tokens) as templates:
            templates.encode(Chat([{"role": "user", "content": "Tell me of llamas"}]))

    Control tokens that a template itself writes become their ids, and no text of a chat does: jinja sees
    marks in their place, and what comes out between two marks is encoded as text.

    Any thread may call; as many chats are rendered at a time as there are helpers.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        tokenizer: Tokenizer,
        control_tokens: ControlTokens,
        limits: HelperLimits = DEFAULT_LIMITS,
        num_helpers: int = 1,
    ) -> None:
        """Start a helper process and try the templates. Raises ModelFileError when one cannot be used.

        GenerationError: the helper did not answer in time, which says nothing of the templates.
        """
        self._tokenizer = tokenizer
        self._control_tokens = control_tokens
        self._marks = ControlMarks(sources, control_tokens)
        renderers = [Renderer(self._marks.sources, limits) for _ in range(num_helpers)]
        renderers[-1].start()
        self._renderers = HelperPool(renderers)
        self._breaks = self._needed_breaks()
        self._skills = {name: Skills.from_trials(partial(self._try, name)) for name in sources}

    def encode(self, chat: Chat, *, add_generation_prompt: bool = True) -> list[int]:
        """The prompt's ids. Nothing is added to what the template writes: BOS stands where it writes it.

        Raises InvalidJob when there is no such template, and GenerationError "template_error" when it refuses
        the chat, fails on it or goes over a limit; one to try again if the helper gave no answer in time. No
        error quotes the chat.
        """
        parts = list(self._parts(self._rendered(chat, add_generation_prompt)))
        if not parts:
            raise GenerationError(
                ErrorCode.TEMPLATE_ERROR, "messages: the chat template writes nothing for them"
            )
        if self._control_tokens.joined is not None:
            return self._control_tokens.joined.encode(parts)
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                is_stripped = bool(ids) and ids[-1] in self._control_tokens.stripping_ids
                ids += self._tokenizer.encode(part.lstrip() if is_stripped else part, add_bos=False)
        return ids

    def close(self) -> None:
        """End the helper processes."""
        self._renderers.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rendered(self, chat: Chat, add_generation_prompt: bool) -> str:
        """The prompt's text, with marks for control tokens."""
        name = self._chosen(chat)
        turns = [shaped(turn, self._skills[name]) for turn in chat.messages]
        return self._render(
            name,
            {
                **self._protected_values(chat.options),
                **self._marks.roles,
                "messages": [self._protected_turn(turn) for turn in turns],
                # Templates ask whether these are none, not only whether they are there.
                "tools": self._protected(chat.tools),
                "documents": self._protected(chat.documents),
                "add_generation_prompt": add_generation_prompt,
                CLOCK: chat.now_ms,
            },
        )

    def _render(self, name: str, variables: Mapping[str, object]) -> str:
        with self._renderers.lent() as renderer:
            return renderer.render(name, variables)

    def _parts(self, text: str) -> Iterator[int | str]:
        """A rendered text as ids of control tokens and the texts between them."""
        for part in self._marks.split(text):
            if isinstance(part, int) or self._breaks is None:
                yield part
            else:
                yield from self._breaks.split(part)

    def _chosen(self, chat: Chat) -> str:
        """The name of the template for a chat, chosen as transformers does. Raises InvalidJob."""
        names = sorted(self._marks.sources)
        choices = (TOOL_USE, DEFAULT) if chat.tools is not None else (DEFAULT,)
        wanted = choices if chat.template is None else (chat.template,)
        found = next((name for name in wanted if name in names), None)
        if found is None:
            raise InvalidJob([FieldError("chat_template", f"must be one of the model's: {', '.join(names)}")])
        return found

    def _protected(self, value: Any) -> Any:
        """JSON of a chat in which no text can be taken for a mark or a control token."""
        if isinstance(value, str):
            text = without_marks(value)
            return text if self._breaks is None else self._breaks.protect(text)
        if isinstance(value, Mapping):
            return {self._protected(name): self._protected(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._protected(item) for item in value]
        return value

    def _protected_values(self, fields: Mapping[str, object]) -> dict[str, Any]:
        """Protect the values of fields whose names are ours."""
        return {name: self._protected(value) for name, value in fields.items()}

    def _protected_turn(self, turn: Mapping[str, object]) -> dict[str, Any]:
        """Protect a turn, but for a role that we know: a template may write control tokens with it."""
        role, content = turn["role"], turn.get("content")
        known = {"role": role} if role in TRUSTED_ROLES else {}
        if role == "assistant" and isinstance(content, str):  # it is what the model itself has written
            known["content"] = self._marks.answer(without_marks(content), self._protected)
        return self._protected_values(turn) | known

    def _try(self, name: str, turns: Sequence[Mapping[str, object]]) -> str | None:
        """Render some turns with a template; None when it refuses them."""
        variables = {"messages": turns, "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            return self._render(name, {**self._marks.roles, **variables})
        except GenerationError as error:
            if error.retriable:
                raise
            return None

    def _needed_breaks(self) -> Breaks | None:
        """The breaks to set between control tokens; None where no template puts any together in a trial."""
        tokens = [token for token in self._control_tokens.ids if len(token) > 1]
        for name in self._marks.sources:
            for probe in PROBES:
                text = self._try(name, probe) or ""
                if any(token in text for token in tokens):
                    return Breaks(self._control_tokens)
        return None
