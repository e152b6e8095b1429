"""Conversations to prompts, by the chat template of a model's file."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError, ModelFileError
from llama_herd.model.quoted import quoted
from llama_herd.model.text.control_marks import Marks, without_marks
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.renderer_pool import RendererPool
from llama_herd.model.text.sandbox import DEFAULT_LIMITS, Limits
from llama_herd.model.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Message:
    """One turn of a conversation; `role` is system, user, assistant or what else the template knows."""

    role: str
    content: str


#: Rendered once at the start: control tokens that a template puts together from parts show up here.
PROBES = (
    (Message("user", "x"),),
    (Message("system", "x"), Message("user", "x"), Message("assistant", "x"), Message("user", "x")),
)


class ChatTemplate:
    """The chat template of a model, rendered in helper processes that cannot hang or bloat this one.

        with ChatTemplate(tokenizer.chat_template, tokenizer, control_tokens) as template:
            template.encode([Message("user", "Tell me of llamas")])

    Control tokens that the template itself writes become their ids, and no text of a message does: jinja sees
    marks in their place, and what comes out between two marks is encoded as text.

    Any thread may call; as many chats are rendered at a time as there are helpers.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        control_tokens: ControlTokens,
        limits: Limits = DEFAULT_LIMITS,
        num_helpers: int = 1,
    ) -> None:
        """Start a helper process and try the template. Raises ModelFileError when it cannot be used."""
        self._tokenizer = tokenizer
        self._marks = Marks(source, control_tokens)
        ends = {"bos_token": control_tokens.bos, "eos_token": control_tokens.eos}
        self._ends = {name: self._marks[token] for name, token in ends.items() if token is not None}
        self._renderers = RendererPool(self._marks.source, limits, num_helpers)
        try:
            self._check_wholeness(control_tokens)
        except ModelFileError:
            self.close()
            raise

    def encode(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """The prompt's ids. Nothing is added to what the template writes: BOS stands where it writes it.

        Raises GenerationError "template_error" when the template refuses the messages, fails on them or goes
        over a limit. The error quotes nothing of the messages.
        """
        ids: list[int] = []
        for part in self._marks.split(self._render(messages, add_generation_prompt)):
            ids += [part] if isinstance(part, int) else self._tokenizer.encode(part, add_bos=False)
        if not ids:
            raise GenerationError(
                ErrorCode.TEMPLATE_ERROR, "messages: the chat template writes nothing for them"
            )
        return ids

    def close(self) -> None:
        """End the helper processes."""
        self._renderers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """The prompt's text, with marks for control tokens."""
        turns = [
            {"role": without_marks(message.role), "content": without_marks(message.content)}
            for message in messages
        ]
        # Templates ask whether tools and documents are none, not only whether they are there.
        return self._renderers.render(
            {
                "messages": turns,
                "add_generation_prompt": add_generation_prompt,
                "tools": None,
                "documents": None,
                **self._ends,
            }
        )

    def _check_wholeness(self, control_tokens: ControlTokens) -> None:
        """Raise ModelFileError when a control token comes out as text, since only whole ones have marks."""
        for probe in PROBES:
            with suppress(GenerationError):  # a template may refuse a probe
                text = self._render(probe, add_generation_prompt=True)
                built = next((token for token in control_tokens.ids if token in text), None)
                if built is not None:
                    raise ModelFileError(
                        f"the chat template puts {quoted(built)} together from parts. "
                        "Write it in one piece there."
                    )
