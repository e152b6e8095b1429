"""Whether a worker can serve a model with these settings on this machine: one check for all commands."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from llama_herd.errors import ModelFileError, SettingsError
from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.files.open_model import open_model
from llama_herd.model.parsers.formats import OutputFormats
from llama_herd.model.shape.purpose import Ranks
from llama_herd.model.text.chat import ChatTemplates
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.template_files import DEFAULT
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.tiling import FIXED, FREE, Tiling
from llama_herd.model.weights.form import AnyKernels
from llama_herd.tasks.protocol.tokenizer_info import TokenizerInfo
from llama_herd.worker.loading.chats import ChatOutputs
from llama_herd.worker.loading.kernels import kernels_of
from llama_herd.worker.loading.machine import num_cores
from llama_herd.worker.loading.memory_plan import MemoryPlan, compute_dtype
from llama_herd.worker.settings import WorkerSettings

#: A longer chat template is not shown: it would fill a job's stream.
MAX_TOLD_TEMPLATE_BYTES = 262_144


@dataclass(frozen=True)
class ServableModel:
    """A model's file, and all that is made from it before its weights are read.

    Workers, `herd inspect` and `herd doctor` all use it, so they refuse the same models:

        with ServableModel.open(settings, device) as servable:
            servable.fitting_plan()
    """

    file: ModelFile
    tokenizer: Tokenizer
    tiling: Tiling
    settings: WorkerSettings
    device: str  # torch's name of it
    is_only_planned: bool = False

    @classmethod
    @contextmanager
    def open(cls, settings: WorkerSettings, device: str, *, is_only_planned: bool = False) -> Iterator[Self]:
        """Open the model of these settings. Raises ModelFileError or SettingsError, with the fix.

        `is_only_planned`: native kernels are taken as right without a trial, which would need torch.
        """
        tiling = _tiling(settings, device)
        with open_model(settings.model, settings.pooling) as file:
            servable = cls(file, file.read_tokenizer(), tiling, settings, device, is_only_planned)
            if isinstance(file.purpose, Ranks) and not servable.templates:
                problem = "has no chat template, which is needed to rank"
                raise ModelFileError(f"{file.metadata.source}: {problem}. Fetch it again.")
            yield servable

    @cached_property
    def kernels(self) -> AnyKernels:
        """The kernels that compute the model. A GPU's are compiled now, if they never were before."""
        return kernels_of(self.settings, self.device, self.file, is_only_planned=self.is_only_planned)

    def plan(self) -> MemoryPlan:
        """The memory that it takes, fitting or not. Raises SettingsError for settings that do not suit it."""
        return MemoryPlan.for_model(self.settings, self.file, self.device, self.kernels)

    def fitting_plan(self) -> MemoryPlan:
        """The memory that it takes. Raises SettingsError also when the device has too little."""
        plan = self.plan()
        plan.check(self.settings.model.name)
        return plan

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

    def check_chat(self) -> None:
        """Raise ModelFileError when there is a chat template that cannot be used."""
        templates = self.chat_templates()
        if templates is not None:
            templates.close()


def _tiling(settings: WorkerSettings, device: str) -> Tiling:
    if not settings.deterministic:
        return FREE
    if device != "cpu" or compute_dtype(settings, device) != "float32":
        raise SettingsError(
            f"HERD_DETERMINISTIC=true needs HERD_DEVICE=cpu and HERD_DTYPE=float32 or auto, "
            f"but they are {settings.device} and {settings.dtype}. "
            "Fix: set these, or leave out HERD_DETERMINISTIC"
        )
    return FIXED
