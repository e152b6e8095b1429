"""The settings of a worker: on which device its model runs, and in how much memory."""

import re
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, ValidationInfo, field_validator

from llama_herd.model.parsers.formats import AUTO, NONE, REASONING_FORMATS, TOOL_FORMATS
from llama_herd.model.shape.pooling import Override
from llama_herd.ops.settings import ServedSettings
from llama_herd.tasks.settings import MAX_CONTEXT_TOKENS, FolderPath, shortened

#: More threads than any machine's cores gain nothing, and some thousands crash the thread runtimes.
MAX_THREADS = 1024

#: A step of more prompt tokens gains nothing: it takes memory, and all streams wait for it.
MAX_PREFILL_TOKENS = 65_536

DAY_S = 86_400

#: Messages taken per tenant beyond the batch, so that the next prompts are ready when rows become free.
NUM_LOOK_AHEAD = 8

#: The name of a task, in which * stands for anything, and a queue.
_ROUTE = re.compile(r"[^\s=,]+\s*=\s*[A-Za-z0-9._:-]{1,128}")


#: What computes: our own engine in the worker, or a server of another one that the worker drives.
EngineKind = Literal["own", "vllm", "llama-server"]

#: Sequences at a time in front of a server, where no setting says how many: what each runs by default.
FOREIGN_SLOTS = {"vllm": 256, "llama-server": 4}

#: A server's address, without a password: a key has a setting of its own.
_URL = re.compile(r"https?://[^\s/@?#]+(/[^\s?#]*)?")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(_URL.fullmatch(url) and parts.hostname) and parts.port != 0
    except ValueError:  # of the port, or of a bracket
        return False


class WorkerSettings(ServedSettings):
    """Read from the same variables as `Settings`; see `.env.example` for all of them."""

    engine: EngineKind = Field(
        "own",
        description="What computes: own, the engine of this worker; or the server at HERD_ENGINE_URL, an "
        "unmodified vllm or llama-server. Of HERD_MODEL only tokenizer and chat template are read then.",
    )
    engine_url: str = Field(
        "",
        validate_default=True,
        description="Address of that server, such as http://127.0.0.1:8000.",
    )
    engine_api_key: str = Field(
        "", max_length=1024, description="Key that the server asks for. Empty: none.", repr=False
    )
    engine_away_s: float = Field(
        600.0,
        ge=1,
        le=DAY_S,
        description="While the server does not answer, the worker keeps its jobs for so long, then gives "
        "them back to the queue. It takes no others meanwhile.",
    )
    device: str = Field(
        "auto",
        description="cpu, or cuda:N with the number that nvidia-smi shows. auto: the first GPU, else cpu.",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="Type of the arithmetic. auto: bfloat16 where the device or kernels are fast in it.",
    )
    weights: Literal["auto", "quantized", "dense"] = Field(
        "auto",
        description="Form of the weights in memory: quantized as in the file, or dense, as plain numbers. "
        "auto: the faster one that fits.",
    )
    kernels_dir: FolderPath = Field(
        "",
        description="Folder of built kernels. Empty: llama-herd/kernels in the user's cache folder.",
    )
    graphs: Literal["auto", "uncaptured", "off"] = Field(
        "auto",
        description="How a GPU runs its steps. auto: as overlapping CUDA graphs, where a check finds them "
        "right. uncaptured: overlapping, but kernel by kernel. off: one by one.",
    )
    triton: Literal["auto", "off"] = Field(
        "auto",
        description="Kernels for a GPU in Triton. auto: those whose results a check finds right. "
        "off: plain torch.",
    )
    deterministic: bool = Field(
        False,
        description="Same token ids in any batch and after any crash. CPU and float32 only, and slower.",
    )
    threads: int = Field(
        0,
        ge=0,
        le=MAX_THREADS,
        description="CPU threads of a worker, at most as many as the cores that it may use. 0: one less than "
        "these.",
    )
    slots: int = Field(
        32,
        ge=1,
        le=1024,
        description="Most sequences in the batch at a time. Absent: 32, and on a GPU 4 for each GB of its "
        "memory, from 32 to 256; 256 in front of vllm, 4 in front of llama-server.",
    )
    context_tokens: int = Field(
        0,
        ge=0,
        le=MAX_CONTEXT_TOKENS,
        description="Longest sequence, prompt and output. 0: the context that the model was trained for.",
    )
    kv_cache_tokens: int = Field(
        0,
        ge=0,
        le=1 << 40,
        description="Size of the KV cache. 0: slots x context, but at most half of the memory that "
        "weights leave, or nine tenths of it on a GPU.",
    )
    memory_share: float = Field(
        1.0,
        ge=0.01,
        le=1,
        description="Largest share of the device's memory that this worker plans to take. "
        "1: all that is free.",
    )
    prefix_cache: bool = Field(
        True, description="Reuse the KV cache of prompts that begin with the same tokens."
    )
    prefill_tokens: int = Field(
        0,
        ge=0,
        le=MAX_PREFILL_TOKENS,
        description="Most prompt tokens in a step while other jobs decode. 0: chosen from "
        "measured times of steps.",
    )
    tool_parser: str = Field(
        "auto",
        description="How the model writes calls of tools: the name of a format, as herd inspect and "
        "docs/tools.md show them. auto: as its chat template says. none: calls are text.",
    )
    reasoning_parser: str = Field(
        "auto",
        description="How the model marks its reasoning, by a format's name. auto: as its chat template "
        "says. none: reasoning is text.",
    )
    pooling: Override = Field(
        "auto",
        description="What the model is for, should its files not say it: vectors by this pooling of a text's "
        "tokens (last, mean, cls), or ranks (rank). auto: as its files say. See docs/vectors.md.",
    )
    tokenizer_info: bool = Field(
        False,
        description="Let jobs ask for the names of control tokens and for the chat template, as "
        "GET /tokenizer_info of the gateway does: see docs/evaluate.md.",
    )
    flush_ms: int = Field(
        50,
        ge=0,
        le=10_000,
        description="Shortest time between two events of a job that sets no `flush_ms`; its first token "
        "comes at once. 0: an event for each step.",
    )
    grace_s: float = Field(5.0, ge=0, le=DAY_S, description="How long running jobs may go on after SIGTERM.")
    max_message_bytes: int = Field(
        2_097_152,
        ge=65_536,
        le=67_108_864,
        description="Longest message that a worker reads. Longer ones become dead letters.",
    )
    silence_s: float = Field(
        15.0,
        ge=2,
        le=DAY_S,
        description="A worker exits if messages wait and it takes none for this long.",
    )
    stall_s: float = Field(
        30.0,
        ge=1,
        le=DAY_S,
        description="If no layer finishes for this long, the worker stops renewing the leases of its jobs.",
    )
    link_queue: str = Field(
        "celery",
        pattern=r"^[A-Za-z0-9._:-]{1,128}$",
        description="Queue for links, chains and chords of other services' tasks that name no queue.",
    )
    link_routes: str = Field(
        "",
        max_length=4096,
        description="Queues for such links by their tasks' names, as in Celery's task_routes: "
        "shop.*=shop,billing.*=billing. Those that no name fits go to HERD_LINK_QUEUE.",
    )
    kept_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of Redis' maxmemory that ended jobs may keep; beyond it new jobs are refused. "
        "0: no limit.",
    )
    remote_control: bool = Field(
        False,
        description="Obey all of Celery's remote control, not only revoke. Whoever reaches Redis can then "
        "shut workers down.",
    )

    @property
    def num_places(self) -> int:
        """Most messages that a worker has in hand, without those whose ETA has not come."""
        return self.slots + NUM_LOOK_AHEAD * len(self.by_queue)

    @property
    def routes_of_links(self) -> dict[str, str]:
        """Queues by the names of tasks, in which * stands for anything."""
        pairs = (route.partition("=") for route in self.link_routes.split(",") if route.strip())
        return {name.strip(): queue.strip() for name, _, queue in pairs}

    @property
    def is_foreign(self) -> bool:
        """Whether a server computes."""
        return self.engine != "own"

    def as_foreign(self) -> Self:
        """The settings of a worker in front of a server, with the slots that it has by default."""
        slots = self.slots if "slots" in self.model_fields_set else FOREIGN_SLOTS[self.engine]
        return self.model_copy(update={"device": self.engine, "slots": slots})

    @field_validator("device")
    @classmethod
    def _is_a_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda:[0-9]{1,4}", device):
            raise ValueError("must be auto, cpu, or cuda:N with the number of a GPU, such as cuda:0")
        return device

    @field_validator("engine_url")
    @classmethod
    def _is_an_address(cls, url: str, others: ValidationInfo) -> str:
        engine = others.data.get("engine", "own")
        if engine != "own" and not url:
            raise ValueError(
                f"must be the address of the server that HERD_ENGINE={engine} asks, as in http://127.0.0.1:8000"
            )
        if engine == "own" and url:
            raise ValueError("is a server's, but HERD_ENGINE=own. Fix: set that to vllm or llama-server")
        if url and not _is_address(url):
            raise ValueError(  # which does not repeat it: there may be a key in it
                "must be http:// or https:// and a host, without a name or a key; a port is from 1 to 65535"
            )
        return url.rstrip("/")

    @field_validator("link_routes")
    @classmethod
    def _names_queues(cls, routes: str) -> str:
        tasks = set[str]()
        for route in map(str.strip, filter(str.strip, routes.split(","))):
            if not _ROUTE.fullmatch(route):
                raise ValueError(
                    f"must be task=queue,task=queue, with * in a task's name, got {shortened(route)}"
                )
            if (task := route.partition("=")[0].strip()) in tasks:
                raise ValueError(f"must name each task once, got {shortened(task)} again")
            tasks.add(task)
        return routes

    @field_validator("tool_parser", "reasoning_parser")
    @classmethod
    def _names_a_format(cls, name: str, info: ValidationInfo) -> str:
        formats = TOOL_FORMATS if info.field_name == "tool_parser" else REASONING_FORMATS
        if name not in (AUTO, NONE, *formats):
            raise ValueError(f"must be one of {', '.join((AUTO, NONE, *formats))}, got {shortened(name)}")
        return name
