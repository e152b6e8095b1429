"""How much memory a model takes on a device at the current settings."""

from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

from gguf import GGML_QUANT_SIZES

from llama_herd.errors import SettingsError
from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.kernels.instruction_set import multiplies_bfloat16
from llama_herd.model.kernels.unloaded import NO_KERNELS
from llama_herd.model.pages import PAGE_TOKENS, pages_for
from llama_herd.model.sizes import (
    BFLOAT16_BYTES,
    FLOAT32_BYTES,
    attend_bytes,
    kv_bytes_per_token,
    native_prompt_bytes,
    native_row_bytes,
    slab_bytes,
    table_bytes,
)
from llama_herd.model.tiling import SHORT_TOKENS
from llama_herd.model.weights.form import AnyKernels, KeptBlocks, WeightForm
from llama_herd.worker.engine.prefill_budget import PrefillBudget
from llama_herd.worker.engine.prompt_shares import MAX_SCORED_TOKENS
from llama_herd.worker.loading.machine import free_bytes, num_threads, total_bytes
from llama_herd.worker.settings import WorkerSettings

if TYPE_CHECKING:
    import torch

#: Bytes per logit of a row that draws: rules, filters, sorted values with their ids, noise. Measured: 37.
DRAWING_BYTES = 40
#: Bytes of a row that draws by its slot, whose penalties look at all of its positions: per logit, and per
#: position of the longest sequence. Measured: 12 and 58.
COUNTING_BYTES, POSITION_BYTES = 12, 60
#: Bytes per logit of a scored token: its exponential, while these are summed up.
SCORING_BYTES = 4


@dataclass(frozen=True)
class StepMemory:
    """Memory of the largest step: `slots` rows beside `prompt_tokens`, or `alone_tokens` by themselves."""

    config: LlamaConfig
    item_bytes: int  # of a number of the compute dtype
    consecutive: bool  # whether a sequence's pages lie next to each other
    slots: int
    prompt_tokens: int
    alone_tokens: int
    num_threads: int
    is_paged: bool = False  # whether kernels on a card read all pages where they lie

    def activation_bytes(self, cache_tokens: int) -> int:
        """The part of one layer that takes most. No step has more tokens than the cache."""
        H, K, D = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        C, F, size = self.config.hidden_size, self.config.ffn_size, self.item_bytes
        T = min(self._num_tokens, cache_tokens)
        wide = FLOAT32_BYTES
        family = self.config.family
        qkv = 2 * C + (H + 2 * K) * D
        if family.qk_norm:
            qkv += (H + K) * D
        rotating = size * (qkv + (H + K) * D) + (3 if family.qk_norm else 2) * wide * (H + K) * D
        attending = size * (qkv + (H + K) * D + 3 * H * D)
        mlp = size * (5 * C + 4 * F)
        if self.consecutive and size < wide:
            mlp += wide * F  # inputs in float32, where the processor multiplies no bfloat16
        norm = size * (3 if family.post_norms else 2) * C + 3 * wide * C
        rope = 2 * wide * D * (2 if self.config.local_rope_base else 1)
        return T * (rope + max(rotating, attending, mlp, norm))

    def attention_bytes(self, max_length: int) -> int:
        """The larger of `attend` and the copies of a prompt's pages in one layer; and what kernels take."""
        copies = 2 * max_length * self.config.num_kv_heads * self.config.head_dim * self.item_bytes
        attending = 0  # where a kernel reads pages as they lie, nothing is gathered and no score is kept
        if not self.is_paged:
            attending = attend_bytes(self.config, self.item_bytes, max_length, consecutive=self.consecutive)
        native = 0
        if self.consecutive:
            rows = self.slots * SHORT_TOKENS * native_row_bytes(self.config, max_length)
            native = rows + self.num_threads * native_prompt_bytes(self.config)
        return max(copies, attending) + native

    def logits_bytes(self, max_length: int) -> int:
        """The logits in float32, and their use: first rows draw, then tokens are scored."""
        num_scored, V = min(MAX_SCORED_TOKENS, self._num_tokens), self.config.vocab_size
        drawing = self.slots * self.drawing_bytes(max_length)
        return V * FLOAT32_BYTES * (self.slots + num_scored) + max(drawing, V * SCORING_BYTES * num_scored)

    def drawing_bytes(self, max_length: int) -> int:
        """The bytes that one row takes to draw: filters and noise, or on a GPU its penalties if larger."""
        V = self.config.vocab_size
        penalties = 0 if self.consecutive else V * COUNTING_BYTES + max_length * POSITION_BYTES
        return max(V * DRAWING_BYTES, penalties)

    def graph_bytes(self, max_length: int) -> int:
        """The bytes that overlapping steps add on a GPU: slots, their logits, and the graphs' own pool."""
        from llama_herd.worker.engine.prefill import TOKENS
        from llama_herd.worker.engine.slots import Slots
        from llama_herd.worker.engine.step_graphs import StepGraphs, bucket_of

        rows = bucket_of(self.slots)
        drawing = rows * (self.config.vocab_size * FLOAT32_BYTES + self.drawing_bytes(max_length))
        kept = Slots.num_bytes(self.slots, max_length)
        kept += StepGraphs.num_bytes(rows, self.config, self.item_bytes)
        tokens = rows + TOKENS[-1]
        return kept + drawing + replace(self, alone_tokens=tokens, prompt_tokens=0).activation_bytes(tokens)

    @property
    def _num_tokens(self) -> int:
        return max(self.alone_tokens, self.prompt_tokens + self.slots)


#: What weights, keys and values are computed in, and the bytes of each number.
Dtype = Literal["float32", "bfloat16"]
ITEM_BYTES: dict[Dtype, int] = {"float32": FLOAT32_BYTES, "bfloat16": BFLOAT16_BYTES}


def torch_dtype(name: Dtype) -> "torch.dtype":
    """A type of numbers as torch has it."""
    import torch  # a plan is made without

    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]


#: What a started worker takes without a model. CPU: measured 300 MB, a tenth more after its first jobs, and
#: the helper process that renders chats. GPU: CUDA's context and the workspaces of its libraries.
PROCESS_BYTES = {"cpu": 400_000_000, "cuda": 800_000_000}
#: The tokenizer's tables, per token of the vocabulary. Measured: 650.
TOKEN_BYTES = 1_000

#: The most of what weights leave that a cache of no stated size takes: others use a machine's memory, too.
CACHE_PART = {"cpu": 0.5, "cuda": 0.9}

#: With less of a cache, fast weights are of no use.
LEAST_CACHE_TOKENS = 2_048
#: The forms of weights that a setting allows; of several the first one that there is room for.
FORMS = {
    "auto": (WeightForm.FASTEST, WeightForm.QUANTIZED),
    "quantized": (WeightForm.QUANTIZED,),
    "dense": (WeightForm.DENSE,),
}


@dataclass(frozen=True)
class MemoryPlan:
    """The most memory that a worker takes on its device; it allocates most of it when it starts."""

    device: str
    step: StepMemory
    dtype: Dtype  # of the arithmetic
    max_length: int  # tokens of the longest sequence
    form: WeightForm  # of the weights
    weight_bytes: int  # laid out on the device
    dense_bytes: int  # what they would take as numbers
    spread_types: tuple[str, ...]  # of blocks that become numbers in this form
    kv_bytes_per_token: int  # in all layers
    num_pages: int
    free_bytes: int  # for this process, including what it already has

    @classmethod
    def for_model(
        cls,
        settings: WorkerSettings,
        file: ModelFile,
        device: str,
        kernels: AnyKernels = NO_KERNELS,
        free: int | None = None,
    ) -> Self:
        """Plan for a model that is not yet loaded. Raises SettingsError, with the numbers and the fix.

        Where the form of the weights is free, the first one is taken that leaves room for a cache. `free` are
        the bytes that there are for it; None: those of this machine's device.
        """
        free = allowed_bytes(settings, device) if free is None else free
        *preferred, smallest = (form.with_kernels(kernels) for form in FORMS[settings.weights])
        for form in preferred:
            plan = cls._in_form(form, settings, file, device, free)
            if plan._has_room(settings):
                return plan._with_wanted_pages(settings)
        return cls._in_form(smallest, settings, file, device, free)._with_wanted_pages(settings)

    @classmethod
    def _in_form(
        cls, form: WeightForm, settings: WorkerSettings, file: ModelFile, device: str, free: int
    ) -> Self:
        """Plan with weights in one form and the smallest cache."""
        dtype, kind = compute_dtype(settings, device, form.kernels), device.partition(":")[0]
        prefill = PrefillBudget.from_setting(settings.prefill_tokens, kind)
        step = StepMemory(
            file.config,
            ITEM_BYTES[dtype],
            consecutive=kind == "cpu",
            slots=settings.slots,
            prompt_tokens=prefill.most,
            alone_tokens=prefill.alone,
            num_threads=num_threads(settings),
            # Without the one that decodes, no other is asked.
            is_paged=kind == "cuda" and None not in (form.kernels.attention, form.kernels.prefill_attention),
        )
        return cls(
            device=device,
            step=step,
            dtype=dtype,
            max_length=_max_length(settings, file.config.context_length),
            form=form,
            weight_bytes=_weight_bytes(form, file, kind, dtype),
            dense_bytes=_weight_bytes(WeightForm.DENSE, file, kind, dtype),
            spread_types=_spread_types(form, file, kind, dtype),
            kv_bytes_per_token=kv_bytes_per_token(file.config, ITEM_BYTES[dtype]),
            num_pages=1,
            free_bytes=free,
        )

    @property
    def parts(self) -> dict[str, int]:
        """The bytes of each part, by the name that people see."""
        longest = min(self.max_length, self.kv_cache_tokens)
        tables = table_bytes(self.step.config, longest, consecutive=self.step.consecutive)
        is_gpu = self.device != "cpu"
        page_bytes = PAGE_TOKENS * self.kv_bytes_per_token
        # The tokenizer is in the machine's memory, not on a GPU.
        cpu_bytes = PROCESS_BYTES["cpu"] + TOKEN_BYTES * self.step.config.vocab_size
        process = {"CUDA": PROCESS_BYTES["cuda"]} if is_gpu else {"Python and torch": cpu_bytes}
        return {
            "weights": self.weight_bytes,
            "KV cache": self.kv_cache_bytes,
            "RoPE tables and masks": tables,
            "activations": self.step.activation_bytes(self.kv_cache_tokens),
            "attention": self.step.attention_bytes(longest),
            "logits and drawing": self.step.logits_bytes(longest),
            # One page more, whose tokens belong to no sequence.
            **({"slots and graphs": self.step.graph_bytes(longest) + page_bytes} if is_gpu else {}),
            **({"blocks at work": slab_bytes(self.device.partition(":")[0])} if self.keeps_blocks else {}),
            **process,
        }

    @property
    def keeps_blocks(self) -> bool:
        """Whether weights stay in the blocks of their file."""
        return self.weight_bytes < self.dense_bytes

    @property
    def form_note(self) -> str:
        """How the weights lie, why, and at what cost."""
        dense = f"dense, as {self.dtype}"
        if self.form.kept is KeptBlocks.MULTIPLIED and self.spread_types:
            dense = f"{dense} (no kernel here multiplies {', '.join(self.spread_types)})"
        if not self.keeps_blocks:
            return dense
        if self.form.kept is KeptBlocks.MULTIPLIED:
            return f"in the file's blocks where a kernel multiplies them, else {dense}"
        needed = f"{self.dense_bytes:,} bytes of {self.free_bytes:,} free"
        slow = "Where no kernel multiplies them, a step takes" if self.form.kernels.types else "A step takes"
        slow = f"{slow} 8 to 50 times as long as with dense weights"
        return f"in the file's blocks; {dense}, they would take {needed}. {slow}"

    @property
    def kv_cache_tokens(self) -> int:
        return self.num_pages * PAGE_TOKENS

    @property
    def kv_cache_bytes(self) -> int:
        return self.kv_cache_tokens * self.kv_bytes_per_token

    @property
    def num_bytes(self) -> int:
        """The bytes of all parts together."""
        return sum(self.parts.values())

    def check(self, model: str) -> None:
        """Raise SettingsError, with both numbers and all parts, when the device has too little memory."""
        if self.num_bytes > self.free_bytes:
            raise self.refusal(model)

    def refusal(self, model: str, numbers: str | None = None) -> SettingsError:
        """The error for too little memory. `numbers`: of an allocation that failed despite the plan."""
        room = f"but {self.device} has {self.free_bytes:,} free"
        if numbers is not None:
            room = f"{self.device} had {self.free_bytes:,} free, but then {numbers}"
        parts = ", ".join(f"{name} {num_bytes:,}" for name, num_bytes in self.parts.items())
        needed = f"{self.num_bytes:,} bytes as {self.dtype} ({parts})"
        shorter = "HERD_DTYPE=bfloat16, " if self.dtype == "float32" else ""
        packed = "HERD_WEIGHTS=auto, " if self.form.kept is KeptBlocks.NOTHING else ""
        fixes = f"{shorter}{packed}lower HERD_SLOTS or HERD_PREFILL_TOKENS, more memory or HERD_MEMORY_SHARE"
        return SettingsError(f"{model} needs {needed}, {room}. Fix: a smaller model, {fixes}")

    def _with_wanted_pages(self, settings: WorkerSettings) -> Self:
        """The plan with the cache size that is set; by default what slots can use, within free memory."""
        if settings.kv_cache_tokens:
            plan = replace(self, num_pages=pages_for(settings.kv_cache_tokens))
            if plan.num_bytes > plan.free_bytes >= self.num_bytes:
                raise self._too_large(settings.kv_cache_tokens, plan)
            return plan
        wanted = settings.slots * pages_for(self.max_length)
        part = CACHE_PART["cpu" if self.device == "cpu" else "cuda"]
        most_bytes = int(part * max(0, self.free_bytes - self.weight_bytes))
        most = max(1, most_bytes // (PAGE_TOKENS * self.kv_bytes_per_token))
        return replace(self, num_pages=min(self._num_fitting_pages(wanted), most))

    def _has_room(self, settings: WorkerSettings) -> bool:
        """Whether the cache that is asked for fits, or one that can be worked with."""
        wanted = settings.kv_cache_tokens or min(self.max_length, LEAST_CACHE_TOKENS)
        return replace(self, num_pages=pages_for(wanted)).num_bytes <= self.free_bytes

    def _num_fitting_pages(self, most: int) -> int:
        """The number of pages that fit beside all other parts, up to `most`, but at least one."""

        def taken(num_pages: int) -> int:
            return replace(self, num_pages=num_pages).num_bytes

        return max(1, bisect_right(range(1, most + 1), self.free_bytes, key=taken))

    def _too_large(self, kv_cache_tokens: int, plan: Self) -> SettingsError:
        """The error for a cache size that was set, but does not fit."""
        beside = plan.num_bytes - plan.kv_cache_bytes
        fitting = self._num_fitting_pages(plan.num_pages) * PAGE_TOKENS
        return SettingsError(
            f"HERD_KV_CACHE_TOKENS={kv_cache_tokens} takes {plan.kv_cache_bytes:,} bytes, but all else "
            f"needs {beside:,} of the {self.free_bytes:,} free on {self.device}. Fix: lower it to {fitting}"
        )


def allowed_bytes(settings: WorkerSettings, device: str) -> int:
    """Return the free bytes of a device, but no more than this worker's share of all its memory."""
    free = free_bytes(device)
    return free if settings.memory_share == 1 else min(free, int(settings.memory_share * total_bytes(device)))


def compute_dtype(settings: WorkerSettings, device: str, kernels: AnyKernels = NO_KERNELS) -> Dtype:
    """The type of the arithmetic, and of weights, keys and values.

    On a CPU native kernels are fast in bfloat16 whatever it multiplies; plain torch is where the CPU is.
    """
    if settings.dtype != "auto":
        return settings.dtype
    if device != "cpu":
        return "bfloat16"
    is_fast = kernels.has_numbers or multiplies_bfloat16()
    return "bfloat16" if is_fast and not settings.deterministic else "float32"


def _weight_bytes(form: WeightForm, file: ModelFile, device_type: str, dtype: Dtype) -> int:
    return sum(form.num_bytes(info.type, info.shape, device_type, ITEM_BYTES[dtype]) for info in file.tensors)


def _spread_types(form: WeightForm, file: ModelFile, device_type: str, dtype: Dtype) -> tuple[str, ...]:
    """The quantised types of a file's matrices that become numbers."""
    types = {info.type for info in file.tensors if len(info.shape) > 1 and GGML_QUANT_SIZES[info.type][0] > 1}
    spread = (one for one in types if not form.keeps_blocks(one, device_type, ITEM_BYTES[dtype]))
    return tuple(sorted(one.name for one in spread))


def _max_length(settings: WorkerSettings, context_length: int) -> int:
    if settings.context_tokens > context_length:
        raise SettingsError(
            f"HERD_CONTEXT_TOKENS={settings.context_tokens}, but {settings.model.name} was trained for "
            f"{context_length}. Fix: lower it, or leave it out"
        )
    return settings.context_tokens or context_length
