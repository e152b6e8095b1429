"""ModelFile: what a Llama is loaded from, whichever format it is in, and the weights that it has to hold."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Self

from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.tensor_file import StoredRows, TensorFile, TensorInfo
from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.shape.purpose import YES_NO, Purpose, Ranks
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.weights.weight import Weight

#: Llama 3.1's scaling: what the speed of each of RoPE's pairs is divided by.
ROPE_NAME = "rope_freqs.weight"
#: What a reranker's file may have instead of a head: a row for each label.
LABELS_NAME = "cls.output.weight"

DIGEST_CHARS = 16

Shape = tuple[int, ...]


class ModelFile(ABC):
    """The file of a model, or its folder. Names of weights are GGUF's, also where the file has others.

    Rows of attn_q and attn_k come in the half-split RoPE layout.
    """

    config: LlamaConfig
    purpose: Purpose
    complaints: tuple[str, ...]  # of a purpose that is not its own, or an adapter
    metadata: Metadata  # with keys as the format has them
    _files: Sequence[TensorFile]
    _weights: Mapping[str, StoredRows]  # by their GGUF names

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights, as they are stored."""
        return sum(info.num_bytes for info in self.tensors)

    @property
    def tensors(self) -> Collection[TensorInfo]:
        """All weights, as they are stored, by the names in their file."""
        return [rows.info for rows in self._weights.values()]

    @property
    @abstractmethod
    def sampling(self) -> dict[str, float]:
        """The sampling that its makers recommend, by the names of a job's fields; not checked."""

    def __contains__(self, name: str) -> bool:
        """Whether an optional weight is there itself."""
        return name in self._weights

    @abstractmethod
    def weight(self, name: str) -> Weight:
        """A weight; a missing `output.weight` is the embedding."""

    @abstractmethod
    def read_tokenizer(self) -> Tokenizer:
        """The model's tokenizer, with a piece for each of its rows. Raises ModelFileError."""

    @abstractmethod
    def read_control_tokens(self, tokenizer: Tokenizer) -> ControlTokens:
        """The names of its control tokens, which chat templates write."""

    def weights_digest(self) -> str:
        """A digest of the first, middle and last row of each weight, as other weights have others in each."""
        digest = hashlib.sha256()
        for name, rows in sorted(self._weights.items()):
            digest.update(f"{name} {rows.info.type.name} {rows.info.shape}\n".encode())
            for row in (0, len(rows) // 2, len(rows) - 1):
                digest.update(rows.read(slice(row, row + 1)).data)
        return digest.hexdigest()[:DIGEST_CHARS]

    def close(self) -> None:
        """Give up the files; what has been read of them stays good."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stored_name(self, name: str) -> str:
        return "token_embd.weight" if name == "output.weight" and name not in self else name


def expected_shapes(config: LlamaConfig, purpose: Purpose | None = None) -> dict[str, Shape]:
    """Every weight of a model of this shape, the optional ones too, rows first. None: it ranks nothing."""
    shapes: dict[str, Shape] = {
        "token_embd.weight": (config.vocab_size, config.hidden_size),
        "output_norm.weight": (config.hidden_size,),
        "output.weight": (config.vocab_size, config.hidden_size),
    }
    if isinstance(purpose, Ranks) and not purpose.labels:
        shapes[LABELS_NAME] = (len(YES_NO), config.hidden_size)
    if config.family.interleaved:
        shapes[ROPE_NAME] = (config.rope_dim // 2,)
    for layer in range(config.num_layers):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in _layer_shapes(config).items()}
    return shapes


def bias_shapes(config: LlamaConfig) -> dict[str, Shape]:
    """A bias for each matrix of a layer; where a family has none, a GGUF file may have some all the same."""
    return {
        f"{name.removesuffix('weight')}bias": shape[:1]
        for name, shape in expected_shapes(config).items()
        if name.startswith("blk.") and len(shape) == 2
    }


def _layer_shapes(config: LlamaConfig) -> dict[str, Shape]:
    """Every weight of one layer, by its name within the layer."""
    family, hidden = config.family, config.hidden_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rows = {"attn_q": q_rows, "attn_k": kv_rows, "attn_v": kv_rows}
    rows |= {"ffn_gate": config.ffn_size, "ffn_up": config.ffn_size}
    if family.fused:
        rows = {"attn_qkv": q_rows + 2 * kv_rows, "ffn_up": 2 * config.ffn_size}
    shapes: dict[str, Shape] = {f"{name}.weight": (num_rows, hidden) for name, num_rows in rows.items()}
    shapes |= {"attn_output.weight": (hidden, q_rows), "ffn_down.weight": (hidden, config.ffn_size)}
    biased = [name for name in shapes if name.startswith(family.biased + config.biased)]
    shapes |= {f"{name.removesuffix('weight')}bias": shapes[name][:1] for name in biased}
    norms = {"attn_norm": hidden, "ffn_norm": hidden}
    if family.qk_norm:
        norms |= {"attn_q_norm": config.head_dim, "attn_k_norm": config.head_dim}
    if family.post_norms:
        norms |= {"post_attention_norm": hidden, "post_ffw_norm": hidden}
    shapes |= {f"{name}.weight": (size,) for name, size in norms.items()}
    return shapes
