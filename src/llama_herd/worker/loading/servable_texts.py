"""What a model's files say of texts: its tokenizer, chat templates and formats, whoever computes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import structlog
from pydantic import ValidationError

from llama_herd.errors import GenerationError, ModelFileError
from llama_herd.model.parsers.formats import OutputFormats
from llama_herd.model.shape.purpose import Purpose, Ranks
from llama_herd.model.text.chat import ChatTemplates
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.template_files import DEFAULT
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.tasks.protocol.sampling import SamplingParams
from llama_herd.tasks.protocol.tokenizer_info import TokenizerInfo
from llama_herd.worker.loading.chats import ChatOutputs
from llama_herd.worker.loading.machine import num_cores
from llama_herd.worker.loading.sequence_maker import ConstraintMaker, SequenceMaker
from llama_herd.worker.loading.text_sequences import TextMaker
from llama_herd.worker.settings import WorkerSettings

log = structlog.get_logger(__name__)

#: A longer chat template is not shown: it would fill a job's stream.
MAX_TOLD_TEMPLATE_BYTES = 262_144


class TextFile(Protocol):
    """The file of a model, as far as texts go."""

    @property
    def purpose(self) -> Purpose: ...

    @property
    def sampling(self) -> dict[str, float]: ...

    def read_control_tokens(self, tokenizer: Tokenizer) -> ControlTokens: ...


@dataclass(frozen=True)
class ServableTexts:
    """A model's tokenizer, and what is made of its files to read and write texts."""

    file: TextFile
    tokenizer: Tokenizer
    settings: WorkerSettings

    @property
    def num_helpers(self) -> int:
        """Helper processes of each kind: one for each tenant's thread, but no more than cores."""
        return min(len(self.settings.by_queue), num_cores())

    @property
    def formats(self) -> OutputFormats:
        """How its outputs write reasoning and calls of tools: as the settings say, or its chat templates."""
        settings = self.settings
        return OutputFormats.from_templates(
            self.tokenizer.chat_templates, settings.tool_parser, settings.reasoning_parser
        )

    @property
    def templates(self) -> Mapping[str, str]:
        """The sources of its chat templates; of a model that ranks, that of a query and a document."""
        purpose = self.file.purpose
        if isinstance(purpose, Ranks) and purpose.template:
            return {DEFAULT: purpose.template}
        return self.tokenizer.chat_templates

    def chat_templates(self) -> ChatTemplates | None:
        """The chat templates, rendered in helper processes, for the caller to close; None if there are none.

        Raises ModelFileError when one cannot be used: a model that generates is served, but refuses chats.
        """
        if not self.templates:
            return None
        return ChatTemplates(
            self.templates, self.tokenizer, self.control_tokens, num_helpers=self.num_helpers
        )

    def chat_outputs(self) -> ChatOutputs:
        """How the outputs of its chats are read."""
        return ChatOutputs(
            self.formats, self.tokenizer.pieces, self.control_tokens.ids if self.formats.marks else {}
        )

    @cached_property
    def control_tokens(self) -> ControlTokens:
        """Those of the model's files, with their ids and roles."""
        return self.file.read_control_tokens(self.tokenizer)

    def tokenizer_info(self, max_length: int) -> TokenizerInfo:
        """What the files say of the tokenizer. max_length: of prompt and output together, in tokens."""
        tokenizer = self.tokenizer
        template = tokenizer.chat_templates.get(DEFAULT, "")
        is_told = 0 < len(template.encode()) <= MAX_TOLD_TEMPLATE_BYTES
        own = {
            "tokenizer_class": type(tokenizer.codec).__name__,
            "add_bos_token": tokenizer.adds_bos,
            "add_eos_token": bool(tokenizer.last_ids),
            "model_max_length": max_length,
            "chat_template": template if is_told else None,
        }
        return TokenizerInfo.model_validate({**self.control_tokens.roles, **own})

    @property
    def sampling(self) -> dict[str, float]:
        """The sampling that the files recommend. A value that no job may have is left out."""
        found = dict[str, float]()
        for name, value in self.file.sampling.items():
            try:
                SamplingParams.model_validate({name: value})
            except ValidationError:
                why = "no job may have this value"
                log.warning("a recommended sampling is not used", field=name, reason=why)
            else:
                found[name] = value
        return found

    def new_maker(
        self,
        chats: tuple[ChatTemplates | None, str],
        grammars: ConstraintMaker,
        max_length: int,
        kv_cache_tokens: int,
        num_dimensions: int = 0,
    ) -> SequenceMaker:
        """What makes sequences of jobs.

        chats: the usable ones. num_dimensions: of a vector, where it makes some.
        """
        (chat, complaint), room = chats, min(max_length, kv_cache_tokens)
        return SequenceMaker(
            tokenizer=self.tokenizer,
            chat=chat,
            chat_complaint=complaint,
            outputs=self.chat_outputs(),
            grammars=grammars,
            max_length=max_length,
            kv_cache_tokens=kv_cache_tokens,
            control_ids=self.control_tokens.ids,
            tokenizer_info=self.tokenizer_info(room) if self.settings.tokenizer_info else None,
            sampling=self.sampling,
            texts=TextMaker(self.tokenizer, self.file.purpose, num_dimensions, room),
            weights_digest=self.weights_digest(),
        )

    def weights_digest(self) -> str:
        """Of the weights that will run; empty: they are not read here."""
        return ""

    def check_chat(self) -> None:
        """Raise ModelFileError when there is a chat template that cannot be used, or be tried now."""
        try:
            templates = self.chat_templates()
        except GenerationError as error:
            raise ModelFileError(f"{error.message}. Try again.") from None
        if templates is not None:
            templates.close()

    def usable_chats(self) -> tuple[ChatTemplates | None, str]:
        """The chat templates; or none, and why chats are refused while all other jobs are served.

        Raises ModelFileError when that of a model that ranks cannot be used: all of its jobs need it. Raises
        GenerationError when they could not be tried in time.
        """
        try:
            return self.chat_templates(), "this model has no chat template."
        except ModelFileError as error:
            if isinstance(self.file.purpose, Ranks):
                raise
            log.warning(
                "chat template cannot be used, chats are refused",
                model=self.settings.model.name,
                reason=str(error),
            )
            return None, str(error)
