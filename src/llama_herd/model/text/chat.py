"""Conversations to prompts, by the chat templates of a model's files."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from llama_herd.closing import Closing
from llama_herd.error_code import ErrorCode
from llama_herd.errors import FieldError, GenerationError, InvalidJob
from llama_herd.model.text.control_marks import Breaks, ControlMarks, without_marks
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.helper import DEFAULT_LIMITS, HelperLimits
from llama_herd.model.text.helper_pool import HelperPool
from llama_herd.model.text.renderer import Renderer
from llama_herd.model.text.sandbox import CLOCK
from llama_herd.model.text.template_files import DEFAULT, TOOL_USE
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.text.turns import PROBES, TRUSTED_ROLES, Skills, shaped


@dataclass(frozen=True)
class Chat:
    """A chat to be rendered, with the variables of transformers' `apply_chat_template`: all of it JSON."""

    messages: Sequence[Mapping[str, object]]
    tools: Sequence[Mapping[str, object]] | None = None
    documents: Sequence[Mapping[str, object]] | None = None
    options: Mapping[str, object] = field(default_factory=dict)  # variables of the template's own
    now_ms: int | None = None  # the date that templates write, unix milliseconds; None: the present
    template: str | None = None  # its name; None: the one for tools if there are some, else the default


class ChatTemplates(Closing):
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
        """Start a helper process and try the templates. Raises ModelFileError when one cannot be used."""
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
        the chat, fails on it or goes over a limit. The error quotes nothing of the chat.
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
            ids += [part] if isinstance(part, int) else self._tokenizer.encode(part, add_bos=False)
        return ids

    def close(self) -> None:
        """End the helper processes."""
        self._renderers.close()

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
            parts = self._marks.parts_of_answer(without_marks(content))
            known["content"] = "".join(
                part if number % 2 else self._protected(part) for number, part in enumerate(parts)
            )
        return self._protected_values(turn) | known

    def _try(self, name: str, turns: Sequence[Mapping[str, object]]) -> str | None:
        """Render some turns with a template; None when it refuses them."""
        variables = {"messages": turns, "tools": None, "documents": None, "add_generation_prompt": True}
        with suppress(GenerationError):
            return self._render(name, {**self._marks.roles, **variables})
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
