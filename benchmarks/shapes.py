"""Models to measure with: the bundled one, and random ones of any shape."""

from dataclasses import dataclass
from pathlib import Path

import torch
from gguf import GGMLQuantizationType

from benchmarks.gpu.random_model import write_random_model
from llama_herd.model.config import LlamaConfig
from llama_herd.worker.settings import BUNDLED_MODEL


@dataclass(frozen=True)
class Shape:
    """A shape of Llama. Without a config it is the bundled model itself."""

    name: str
    config: LlamaConfig | None = None

    def file(self, folder: Path) -> Path:
        """A model file of the shape; random weights are written into `folder`, once."""
        if self.config is None:
            return BUNDLED_MODEL
        path = folder / f"{self.name}.gguf"
        if path.exists():
            return path
        return write_random_model(path, self.config, GGMLQuantizationType.Q8_0, torch.device("cpu"))


def random_config(
    *,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    ffn_size: int,
    num_kv_heads: int | None = None,
    vocab_size: int = 32_000,
    context_length: int = 8_192,
) -> LlamaConfig:
    """As many kv heads as heads unless told otherwise."""
    head_dim = hidden_size // num_heads
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads or num_heads,
        head_dim=head_dim,
        ffn_size=ffn_size,
        context_length=context_length,
        rms_eps=1e-5,
        rope_base=10_000.0,
        rope_dim=head_dim,
    )


def random_shape(name: str, **sizes: int) -> Shape:
    """A shape of random weights; `sizes` are those of `random_config`."""
    return Shape(name, random_config(**sizes))


BUNDLED = Shape("bundled")
#: The bundled model's shape with room for long prompts: 3.3 M parameters.
LONG_BUNDLED = random_shape(
    "random-3m", hidden_size=256, num_layers=4, num_heads=8, num_kv_heads=4, ffn_size=640, vocab_size=2_048
)
RANDOM_59M = random_shape("random-59m", hidden_size=512, num_layers=8, num_heads=8, ffn_size=1_408)
