"""A request to the Responses API, read and checked: the job, and how it is answered."""

from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers

from llama_herd.errors import FieldError, InvalidJob
from llama_herd.tasks.gateway.completion_request import OWN_FIELDS, CompletionRequest
from llama_herd.tasks.gateway.identity import Caller
from llama_herd.tasks.gateway.settings import GatewaySettings
from llama_herd.tasks.openai.request_body import CHAT
from llama_herd.tasks.openai.responses.answer import repeated
from llama_herd.tasks.openai.responses.body import PREVIOUS, ResponseBody
from llama_herd.tasks.openai.responses.conversation import Conversation


class ResponseRequest(CompletionRequest):
    """A request for an answer. Raises InvalidJob with every wrong field, and Problem.

    before: the conversation that it goes on with.
    is_background: whether it is answered at once, and its job goes on without its client. asked: what the
    answer repeats of it.
    """

    own_fields = (*OWN_FIELDS, "background", PREVIOUS)
    stream_options = ("include_obfuscation",)

    def __init__(
        self,
        body: Mapping[str, Any],
        before: Conversation,
        headers: Headers,
        settings: GatewaySettings,
        caller: Caller,
    ) -> None:
        self._before = before
        super().__init__(CHAT, body, headers, settings, caller)
        background = body.get("background")
        if not isinstance(background, bool | None):
            raise InvalidJob([FieldError("background", "must be true or false")])
        self.is_background = background is True
        self.keeps_jobs = self.keeps_jobs or self.is_background
        self.asked = repeated(body)

    def _read(self, body: Mapping[str, Any]) -> ResponseBody:
        found = ResponseBody(body, self._before)
        if body.get("store") is not False:
            found.keep()
        return found

    def source(self, number: int) -> str:
        return "input"
