"""A Llama in a GGUF file: its shape, and exactly the weights that such a Llama has."""

from collections.abc import Collection, Mapping
from os import PathLike
from types import TracebackType
from typing import Self

from llama_herd.errors import ModelFileError
from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.gguf_header import OTHER_TYPE, TensorInfo
from llama_herd.model.files.gguf_parts import GGUFParts
from llama_herd.model.kernels.dequantize import SUPPORTED_TYPES
from llama_herd.model.metadata import Metadata
from llama_herd.model.quoted import quoted
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.weight import Rows, Weight, unpermute_rows

#: Without `output.weight` the embedding is used twice; `rope_freqs.weight` holds Llama 3.1's RoPE factors.
OPTIONAL_WEIGHTS = frozenset({"output.weight", "rope_freqs.weight"})

Shape = tuple[int, ...]


class GGUFModel:
    """The checked view of a model file.

        with GGUFModel.open("model.gguf") as model:
            model.config.num_layers
            model.weight("blk.0.attn_q.weight")

    Names are GGUF's. The rows of attn_q and attn_k come in the half-split RoPE layout.
    """

    def __init__(self, file: GGUFParts) -> None:
        self.config = LlamaConfig.from_metadata(file.metadata)
        _check_tensor_set(file, expected_shapes(self.config))
        self._file = file

    @classmethod
    def open(cls, path: str | PathLike[str]) -> Self:
        """Open a model file, or all parts by one of them.

        Raises ModelFileError when it is missing, damaged or not a known Llama.
        """
        file = GGUFParts.open(path)
        try:
            return cls(file)
        except ModelFileError:
            file.close()
            raise

    @property
    def metadata(self) -> Metadata:
        return self._file.metadata

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights, as they are stored."""
        return sum(info.num_bytes for info in self.tensors)

    @property
    def tensors(self) -> Collection[TensorInfo]:
        """All weights, as they are stored, by the names in their file."""
        return self._file.tensors.values()

    def __contains__(self, name: str) -> bool:
        """Whether the file holds an optional weight itself."""
        return name in self._file.tensors

    def weight(self, name: str) -> Weight:
        """A weight by its GGUF name; a missing `output.weight` is the embedding."""
        info = self._file.tensors[self._stored_name(name)]
        rows: Rows = self._file.rows(info.name)
        if name.endswith(".attn_q.weight"):
            rows = unpermute_rows(rows[:], self.config.num_heads)
        elif name.endswith(".attn_k.weight"):
            rows = unpermute_rows(rows[:], self.config.num_kv_heads)
        return Weight(info.type, info.shape, rows)

    def read_tokenizer(self) -> Tokenizer:
        """The file's tokenizer. Raises ModelFileError."""
        return Tokenizer.from_metadata(self.metadata)

    def read_control_tokens(self, tokenizer: Tokenizer) -> ControlTokens:
        """The names of its control tokens, which chat templates write."""
        return ControlTokens.from_metadata(self.metadata, tokenizer)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stored_name(self, name: str) -> str:
        return "token_embd.weight" if name == "output.weight" and name not in self else name


def expected_shapes(config: LlamaConfig) -> dict[str, Shape]:
    """Every weight that a Llama of this shape has, the optional ones too, rows first."""
    shapes: dict[str, Shape] = {
        "token_embd.weight": (config.vocab_size, config.hidden_size),
        "output_norm.weight": (config.hidden_size,),
        "output.weight": (config.vocab_size, config.hidden_size),
        "rope_freqs.weight": (config.rope_dim // 2,),
    }
    for layer in range(config.num_layers):
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in _layer_shapes(config).items()}
    return shapes


def _layer_shapes(config: LlamaConfig) -> dict[str, Shape]:
    q_rows = config.num_heads * config.head_dim
    kv_rows = config.num_kv_heads * config.head_dim
    return {
        "attn_norm": (config.hidden_size,),
        "attn_q": (q_rows, config.hidden_size),
        "attn_k": (kv_rows, config.hidden_size),
        "attn_v": (kv_rows, config.hidden_size),
        "attn_output": (config.hidden_size, q_rows),
        "ffn_norm": (config.hidden_size,),
        "ffn_gate": (config.ffn_size, config.hidden_size),
        "ffn_up": (config.ffn_size, config.hidden_size),
        "ffn_down": (config.hidden_size, config.ffn_size),
    }


def _check_tensor_set(file: GGUFParts, expected: Mapping[str, Shape]) -> None:
    for name in expected:
        if name not in file.tensors and name not in OPTIONAL_WEIGHTS:
            raise ModelFileError(f"{file.path}: tensor {name} is missing. Fetch or convert the file again.")
    for info in file.tensors.values():
        _check_tensor(file, info, expected)


def _check_tensor(file: GGUFParts, info: TensorInfo, expected: Mapping[str, Shape]) -> None:
    """Raise ModelFileError unless a tensor is one of those expected, in its shape and of a known type."""
    tensor = f"{file.path}: tensor {quoted(info.name)}"
    if info.name.endswith(".bias"):
        raise ModelFileError(f"{tensor} is a bias, and biases are not supported. Take another model.")
    if info.name not in expected:
        raise ModelFileError(f"{tensor} is no part of a Llama of this shape. Take another model.")
    if info.shape != expected[info.name]:
        raise ModelFileError(
            f"{tensor} has shape {info.shape}, expected {expected[info.name]}. Convert it again."
        )
    if info.type not in SUPPORTED_TYPES:
        raise ModelFileError(f"{tensor} is of type {info.type.name}, which is not supported. {OTHER_TYPE}")
