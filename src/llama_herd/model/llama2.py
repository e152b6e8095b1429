"""Llama 2, and the families that differ from it a little: the whole model in one file.

It is weights alone; all state lives in the Cache. What sets a family apart stands in `shape/families.py`, and
each part takes it from there when it is loaded.

Shapes: T tokens of the ragged batch, R rows that want logits, H heads, K kv heads, D head dim, C hidden size,
F ffn size, V vocabulary. How long each sequence is (S), only the cache and `attend` know.

Source: Llama 2, https://arxiv.org/abs/2307.09288
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from llama_herd.model.attend import AttentionKernel, attend, layer_scoring
from llama_herd.model.attention_inputs import Scoring, Seen, SeenSpans
from llama_herd.model.batch import AnyBatch
from llama_herd.model.cache import Cache, Rope
from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.model_file import ModelFile
from llama_herd.model.kernels.elementwise import RowKernels
from llama_herd.model.kernels.rotation import RotationKernel
from llama_herd.model.loader import WeightLoader
from llama_herd.model.native_layers import LayerParts, NativeLayers, Vectors
from llama_herd.model.shape.purpose import Generates
from llama_herd.model.tiling import FREE, Tiling
from llama_herd.model.weights.form import WeightForm
from llama_herd.model.weights.linear import Linear, Segment

#: The activations by their names in config.json.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu_pytorch_tanh": partial(gelu, approximate="tanh"),
}


@dataclass(frozen=True, eq=False)
class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight, in float32. Source: https://arxiv.org/abs/1910.07467"""

    weight: Tensor  # (C,), or (heads, D) of one head each, float32
    eps: float
    native: RowKernels | None = None

    def __call__(self, x: Tensor) -> Tensor:
        if self.native is not None and self.native.takes(x):
            return self.native.norm(x, self.weight, self.eps)
        wide = x.float()  # (T, C)
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)  # (T, 1)
        return (wide * scale * self.weight).to(x.dtype)  # (T, C)

    def of_sum(
        self, x: Tensor, added: Tensor, alpha: float, post_norm: "RMSNorm | None"
    ) -> tuple[Tensor, Tensor]:
        """What `add` gives, and that normalised: (T, C) each."""
        if self.native is not None and self.native.takes(x):
            post_weight = None if post_norm is None else post_norm.weight
            return self.native.norm_of_sum(x, added, self.weight, self.eps, alpha, post_weight)
        total = add(x, added, alpha, post_norm)
        return total, self(total)


@dataclass(frozen=True, eq=False)
class CausalSelfAttention:
    """QKV projection, RoPE, cache write, attention and output projection in one place."""

    config: LlamaConfig
    layer: int
    qkv: Linear  # C to (H + K + K) * D
    output: Linear  # H * D to C
    qk_norm: RMSNorm | None  # of queries and keys, head by head
    scoring: Scoring
    native: AttentionKernel[Seen] | None  # of short spans
    prefill: AttentionKernel[SeenSpans] | None  # of long ones
    rotation: RotationKernel | None

    @classmethod
    def load(cls, loader: WeightLoader, layer: int) -> Self:
        config, prefix = loader.file.config, f"blk.{layer}.attn"
        parts = ["qkv"] if config.family.fused else ["q", "k", "v"]
        return cls(
            config,
            layer,
            loader.linear(*(f"{prefix}_{part}.weight" for part in parts)),
            loader.linear(f"{prefix}_output.weight"),
            cls._load_qk_norm(loader, prefix) if config.family.qk_norm else None,
            layer_scoring(config, layer),
            loader.form.kernels.attention,
            loader.form.kernels.prefill_attention,
            loader.form.kernels.rotation,
        )

    @staticmethod
    def _load_qk_norm(loader: WeightLoader, prefix: str) -> RMSNorm:
        """Both norms as one, with a row for each head."""
        config = loader.file.config
        q, k = (loader.vector(f"{prefix}_{part}_norm.weight") for part in "qk")  # (D,) each
        heads = torch.cat((q.expand(config.num_heads, -1), k.expand(config.num_kv_heads, -1)))  # (H + K, D)
        return RMSNorm(heads, config.rms_eps)

    def __call__(self, x: Tensor, rope: Rope, batch: AnyBatch, cache: Cache) -> Tensor:
        H, K, D = self.config.num_heads, self.config.num_kv_heads, self.config.head_dim
        qkv = self.qkv(x).view(-1, H + K + K, D)  # (T, H + K + K, D)
        queries = self._rotated_and_written(qkv, rope, batch, cache)  # (T, H, D)
        attended = attend(
            queries, cache, self.layer, batch, self.scoring, self.native, self.prefill
        )  # (T, H, D)
        return self.output(attended.flatten(1))  # (T, C)

    def _rotated_and_written(self, qkv: Tensor, rope: Rope, batch: AnyBatch, cache: Cache) -> Tensor:
        """The queries (T, H, D) of qkv (T, H + K + K, D), which may be overwritten; the rest is cached."""
        H, K = self.config.num_heads, self.config.num_kv_heads
        cached = cache.storage[:, self.layer]
        if self.rotation is not None and self.rotation.takes(qkv, cached):
            self.rotation(qkv, *rope, cached, batch.cells, self.qk_norm)
            return qkv[:, :H]
        qk = qkv[:, : H + K]  # (T, H + K, D)
        if self.qk_norm is not None:
            qk = self.qk_norm(qk)
        qk = rotate(qk, rope)
        queries, keys, values = qk[:, :H], qk[:, H:], qkv[:, H + K :]  # (T, H, D), (T, K, D), (T, K, D)
        cache.write(self.layer, keys, values, batch)
        return queries


@dataclass(frozen=True, eq=False)
class Mlp:
    """SwiGLU: down(silu(gate(x)) * up(x)), or another activation. Source: https://arxiv.org/abs/2002.05202"""

    gate_up: Linear  # C to F + F
    down: Linear  # F to C
    activation: str = "silu"
    native: RowKernels | None = None

    @classmethod
    def load(cls, loader: WeightLoader, layer: int) -> Self:
        family, prefix = loader.file.config.family, f"blk.{layer}.ffn"
        parts = ["up"] if family.fused else ["gate", "up"]
        return cls(
            loader.linear(*(f"{prefix}_{part}.weight" for part in parts)),
            loader.linear(f"{prefix}_down.weight"),
            family.activation,
            loader.form.kernels.elementwise,
        )

    def __call__(self, x: Tensor) -> Tensor:
        gate_up = self.gate_up(x)  # (T, F + F)
        if self.native is not None and self.native.takes(gate_up):
            return self.down(self.native.gate(gate_up, self.activation))
        gate, up = gate_up.chunk(2, dim=-1)  # (T, F) each
        return self.down(ACTIVATIONS[self.activation](gate) * up)  # (T, C)


@dataclass(frozen=True, eq=False)
class Block:
    """One decoder layer: attention, then MLP, each on a normalised input and added to it."""

    attention_norm: RMSNorm
    attention: CausalSelfAttention
    attention_post_norm: RMSNorm | None
    mlp_norm: RMSNorm
    mlp: Mlp
    mlp_post_norm: RMSNorm | None
    scale: float  # of what is added
    has_window: bool

    @property
    def parts(self) -> LayerParts:
        """All of it but its scale."""
        attention, mlp = self.attention, self.mlp
        linears = attention.qkv, attention.output, mlp.gate_up, mlp.down
        optional = self.attention_post_norm, self.mlp_post_norm, attention.qk_norm
        weights = (None if norm is None else norm.weight for norm in optional)
        norms = Vectors(self.attention_norm.weight, self.mlp_norm.weight, *weights)
        return LayerParts(norms, linears, attention.scoring, mlp.activation)

    @property
    def is_native(self) -> bool:
        """Whether native kernels multiply by all its matrices."""
        return all(linear.is_native for linear in self.parts.linears)

    @classmethod
    def load(cls, loader: WeightLoader, layer: int) -> Self:
        config = loader.file.config

        def norm(name: str) -> RMSNorm:
            weight = loader.vector(f"blk.{layer}.{name}.weight")
            return RMSNorm(weight, config.rms_eps, loader.form.kernels.elementwise)

        has_post_norms = config.family.post_norms
        attention_norm, attention = norm("attn_norm"), CausalSelfAttention.load(loader, layer)
        mlp_norm, mlp = norm("ffn_norm"), Mlp.load(loader, layer)
        return cls(
            attention_norm,
            attention,
            norm("post_attention_norm") if has_post_norms else None,
            mlp_norm,
            mlp,
            norm("post_ffw_norm") if has_post_norms else None,
            config.residual_scale,
            config.window(layer) > 0,
        )

    def __call__(self, x: Tensor, rope: Rope, batch: AnyBatch, cache: Cache) -> Tensor:
        y = self.attention(self.attention_norm(x), rope, batch, cache)  # (T, C)
        x, y = self.mlp_norm.of_sum(x, y, self.scale, self.attention_post_norm)  # (T, C) each
        return add(x, self.mlp(y), self.scale, self.mlp_post_norm)  # (T, C)


@dataclass(frozen=True, eq=False)
class Llama:
    """A Llama, or a model of another family, on one device.

        llama = Llama.load(open_model("model.gguf"))
        cache = Cache(llama.config, num_pages=64)
        pages = cache.pages.reserve("job", num_tokens=100)
        logits = llama.forward(Batch.from_chunks([Chunk(pages, 0, prompt_ids, num_logits=1)]), cache)

    It never changes: what a forward leaves behind is in the cache.
    """

    config: LlamaConfig
    tiling: Tiling
    embedding: Segment  # (V, C)
    blocks: tuple[Block, ...]
    native: NativeLayers | None  # the blocks in native calls
    norm: RMSNorm
    output: Linear | None  # C to V; None: the model is for states, not for text
    mover: Thread | None = None  # moves the weights to where they are read fastest

    @classmethod
    def load(
        cls,
        file: ModelFile,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        on_progress: Callable[[int, int], None] | None = None,
        tiling: Tiling = FREE,
        form: WeightForm = WeightForm.DENSE,
    ) -> Self:
        """Load weight by weight: memory peaks at the weights and one slab of rows.

        `on_progress` is told bytes of the file that are done, and all. `tiling` cuts the matrix products;
        batches must be cut by the same. `form` says which matrices stay in blocks. Without
        `output.weight` the embedding is used twice; a model that generates no text has no output.
        """
        loader = WeightLoader(file, torch.device(device), dtype, tiling.row_tile, form, on_progress)
        generates = isinstance(file.purpose, Generates)
        tied = generates and "output.weight" not in file
        embedding = loader.segment("token_embd.weight", is_multiplied=tied)
        blocks = loader.side_by_side(lambda layer: Block.load(loader, layer), file.config.num_layers)
        norm = RMSNorm(
            loader.vector("output_norm.weight"), file.config.rms_eps, loader.form.kernels.elementwise
        )
        output = Linear((embedding,)) if tied else loader.linear("output.weight") if generates else None
        native = NativeLayers.if_native(file.config, [block.parts for block in blocks])
        return cls(file.config, tiling, embedding, tuple(blocks), native, norm, output, loader.finish())

    def settle(self) -> None:
        """Wait until the weights lie where they are read fastest; forwards before that are slower."""
        if self.mover is not None:
            self.mover.join()

    @property
    def is_native(self) -> bool:
        """Whether native kernels, which have threads of their own, multiply by all matrices."""
        has_native_output = self.output is None or self.output.is_native
        return has_native_output and all(block.is_native for block in self.blocks)

    @torch.inference_mode()
    def forward(self, batch: AnyBatch, cache: Cache, on_layer: Callable[[], None] | None = None) -> Tensor:
        """Run a batch and keep its keys and values: logits (R, V) in float32 of the rows that want them.

        `on_layer` is called after each layer: a long prompt on a slow machine takes minutes.
        With float32 weights each is within 1e-4 of a forward in float64, whoever runs beside it.
        """
        return self.logits(self.hidden(batch, cache, on_layer)[batch.logit_rows])

    def hidden(self, batch: AnyBatch, cache: Cache, on_layer: Callable[[], None] | None = None) -> Tensor:
        """Run a batch through all layers: what is behind the last one (T, C)."""
        config = self.config
        rope = local_rope = cache.rope(batch.positions)
        if config.local_rope_base:
            local_rope = cache.rope(batch.positions, local=True)
        x = self.embedding.rows(batch.ids)  # (T, C)
        if config.embedding_scale != 1:
            x = x * config.embedding_scale
        if self.native is not None and self.native.takes(x, batch, cache):
            return self.native(x, rope, local_rope, batch, cache, on_layer)
        for block in self.blocks:
            x = block(x, local_rope if block.has_window else rope, batch, cache)  # (T, C)
            if on_layer is not None:
                on_layer()
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits (R, V) in float32 of rows (R, C) of what is behind the last layer."""
        assert self.output is not None, "a model that generates no text has no logits"
        return self.scaled(self.output.in_float32(self.norm(hidden)))

    def scaled(self, logits: Tensor) -> Tensor:
        """Logits (R, any) as the family scales and caps them."""
        config = self.config
        if config.logit_divisor != 1:
            logits = logits / config.logit_divisor
        if config.logit_cap:
            logits = (logits / config.logit_cap).tanh_() * config.logit_cap
        return logits


def add(x: Tensor, added: Tensor, alpha: float, post_norm: RMSNorm | None) -> Tensor:
    """x + alpha * added (T, C), which is normalised before if there is a norm for it."""
    return torch.add(x, added if post_norm is None else post_norm(added), alpha=alpha)


def rotate(x: Tensor, rope: Rope) -> Tensor:
    """Turn the heads of x (T, heads, D), dimension i with i + D/2, in float32."""
    swapped = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * rope.cos, swapped, rope.sin).to(x.dtype)
