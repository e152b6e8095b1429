"""Tiny models of every family: transformers' own, and the files that people have of such models.

    tiny = TINY_FAMILIES["qwen2"]
    model = tiny.model()
    tiny.write_folder(model, folder)
    tiny.write_gguf(model, path)

The GGUF files are as llama.cpp's converter writes them: names by the gguf package's own table, Q and K
permuted where the converter does so, ones added to norms that count from one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import torch
from torch import Tensor

from tests.model.forwards import VOCAB_SIZE
from tests.tiny import add_tokenizer, permute_rows, tiny_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: Changes of metadata that only some converters write, by what a writer is told.
Extra = Callable[[gguf.GGUFWriter], None]


@dataclass(frozen=True)
class TinyFamily:
    """One model of a family, whose numbers make each difference to Llama 2 show in the logits."""

    model_type: str
    architecture: str
    config: dict[str, Any] = field(default_factory=dict)
    extra: Extra | None = None
    permutes: bool = False
    norm_shift: float = 0.0
    attention_gain: float = 1.5

    def model(self) -> "PreTrainedModel":
        """transformers' model, its weights the same at every call."""
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(self.model_type, **{**SHAPE, **self.config})
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(self._random(name, weight.shape, generator))
        model.tie_weights()
        return model

    def write_folder(self, model: "PreTrainedModel", folder: Path) -> Path:
        """The model as transformers saves it."""
        model.save_pretrained(folder)
        return folder

    def write_gguf(self, model: "PreTrainedModel", path: Path) -> Path:
        """The model as llama.cpp converts it."""
        writer = gguf.GGUFWriter(path, self.architecture)
        self._add_shape(writer, model.config)
        if self.extra is not None:
            self.extra(writer)
        names = gguf.get_tensor_name_map(self._arch, model.config.num_hidden_layers)
        is_tied = model.config.tie_word_embeddings
        for name, weight in model.state_dict().items():
            if not (name == "lm_head.weight" and is_tied):
                stem, kind = name.rsplit(".", 1)
                stored = self._converted(name, weight, model.config)
                writer.add_tensor(f"{names.get_name(stem)}.{kind}", stored.contiguous().numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    @property
    def _arch(self) -> gguf.MODEL_ARCH:
        return next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == self.architecture)

    def _random(self, name: str, shape: torch.Size, generator: torch.Generator) -> Tensor:
        noise = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            return 0.1 * noise + 1 - self.norm_shift
        if name.endswith(".bias"):
            return 0.5 * noise
        is_head = name in ("lm_head.weight", "model.embed_tokens.weight")
        return noise * ((0.5 if is_head else self.attention_gain) / math.sqrt(shape[-1]))

    def _converted(self, name: str, weight: Tensor, config: Any) -> Tensor:
        if self.permutes and name.endswith(("q_proj.weight", "q_proj.bias")):
            return permute_rows(weight, config.num_attention_heads)
        if self.permutes and name.endswith(("k_proj.weight", "k_proj.bias")):
            return permute_rows(weight, config.num_key_value_heads)
        return weight + self.norm_shift if name.endswith("norm.weight") else weight

    def _add_shape(self, writer: gguf.GGUFWriter, config: Any) -> None:
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        add_tokenizer(writer, tiny_vocabulary(), eos=True)
        if getattr(config, "head_dim", None):
            writer.add_key_length(config.head_dim)
            writer.add_value_length(config.head_dim)
        rope = config.rope_parameters
        writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])


def llama3_divisors(head_dim: int, base: float, factor: float, context: int) -> Tensor:
    """rope_freqs.weight as the converter makes it, with low and high factors 1 and 4."""
    wavelengths = 2 * math.pi * base ** (torch.arange(0, head_dim, 2) / head_dim)
    turns = context / wavelengths
    smooth = (turns - 1) / 3
    medium = 1 / ((1 - smooth) / factor + smooth)
    ones = torch.ones_like(turns)
    return torch.where(turns > 4, ones, torch.where(turns < 1, factor * ones, medium))


def _add_llama3_rope(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_dimension_count(16)
    writer.add_tensor("rope_freqs.weight", llama3_divisors(16, 500.0, 8.0, 128).numpy())


def _add_linear_rope(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(4.0)


def _add_yarn(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(128)


def _add_granite_scales(writer: gguf.GGUFWriter) -> None:
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_rope_dimension_count(16)
    writer.add_attention_scale(0.1)
    writer.add_embedding_scale(12.0)
    writer.add_residual_scale(0.22)
    writer.add_logit_scale(8.0)


def _add_phi3(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_orig_ctx_len(512)
    writer.add_rope_dimension_count(16)
    writer.add_sliding_window(24)


def _add_gemma2(writer: gguf.GGUFWriter) -> None:
    writer.add_attn_logit_softcapping(2.0)
    writer.add_final_logit_softcapping(0.5)
    writer.add_sliding_window(24)


def _add_gemma3(writer: gguf.GGUFWriter) -> None:
    writer.add_sliding_window(24)
    _add_linear_rope(writer)


GEMMA2 = {
    "head_dim": 32,
    "query_pre_attn_scalar": 32,
    "sliding_window": 24,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 0.5,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 128}

TINY_FAMILIES = {
    "llama3.1": TinyFamily(
        "llama", "llama", {"rope_parameters": LLAMA3_ROPE}, _add_llama3_rope, permutes=True
    ),
    "llama, linear": TinyFamily(
        "llama",
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
        _add_linear_rope,
        permutes=True,
    ),
    "mistral": TinyFamily(
        "mistral",
        "llama",
        {"sliding_window": 24},
        lambda writer: writer.add_sliding_window(24),
        permutes=True,
    ),
    "qwen2": TinyFamily("qwen2", "qwen2", {"tie_word_embeddings": True}),
    "qwen2, yarn": TinyFamily("qwen2", "qwen2", {"rope_parameters": YARN}, _add_yarn),
    "qwen3": TinyFamily("qwen3", "qwen3", {"head_dim": 32}),
    "granite": TinyFamily(
        "granite",
        "granite",
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.1,
            "logits_scaling": 8.0,
        },
        _add_granite_scales,
        permutes=True,
    ),
    "phi3": TinyFamily("phi3", "phi3", {"sliding_window": 24}, _add_phi3),
    "gemma2": TinyFamily("gemma2", "gemma2", GEMMA2, _add_gemma2, norm_shift=1.0),
    "gemma2, wide": TinyFamily(
        "gemma2",
        "gemma2",
        {**GEMMA2, "num_hidden_layers": 46, "query_pre_attn_scalar": 16},
        _add_gemma2,
        norm_shift=1.0,
    ),
    "gemma3": TinyFamily(
        "gemma3_text",
        "gemma3",
        {
            "num_hidden_layers": 7,
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 24,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0},
            },
        },
        _add_gemma3,
        norm_shift=1.0,
    ),
}
