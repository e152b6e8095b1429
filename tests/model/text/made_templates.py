"""Chat templates of the tiny vocabulary, and conversations for them."""

import pytest

from llama_herd.errors import GenerationError
from llama_herd.model.text.chat import Chat, ChatTemplates
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.helper import HelperLimits
from llama_herd.model.text.template_files import DEFAULT
from llama_herd.model.text.tokenizer import Tokenizer

#: The CPU time ends what never ends, however long that takes on a busy machine.
LIMITS = HelperLimits(cpu_s=0.2)
SHORT_LIMITS = LIMITS._replace(cpu_s=0.1)  # for what goes over them


class MadeTemplates:
    """Makes templates of the tiny vocabulary, and ends them with the test."""

    def __init__(self, tokenizer: Tokenizer, control_tokens: ControlTokens) -> None:
        self._tokenizer = tokenizer
        self._control_tokens = control_tokens
        self._made: list[ChatTemplates] = []

    def make(self, source: str, limits: HelperLimits = LIMITS) -> ChatTemplates:
        sources = {DEFAULT: source}
        self._made.append(ChatTemplates(sources, self._tokenizer, self._control_tokens, limits))
        return self._made[-1]

    def close(self) -> None:
        for template in self._made:
            template.close()


def turn(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


def conversation(*contents: str, system: str | None = None, template: str | None = None) -> Chat:
    """Turns of user and assistant, after a system message if there is one."""
    turns = [turn(("user", "assistant")[number % 2], content) for number, content in enumerate(contents)]
    head = [] if system is None else [turn("system", system)]
    return Chat([*head, *turns], template=template)


def error_of(templates: ChatTemplates, *contents: str, template: str | None = None) -> GenerationError:
    with pytest.raises(GenerationError) as caught:
        templates.encode(conversation(*contents, template=template))
    assert caught.value.code == "template_error"
    return caught.value
