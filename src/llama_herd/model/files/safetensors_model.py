"""A Llama in a Hugging Face folder: its shape, and exactly the weights that such a Llama has."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Self

from gguf import GGMLQuantizationType

from llama_herd.errors import ModelFileError
from llama_herd.model.config import LlamaConfig
from llama_herd.model.files.model_file import ROPE_NAME, ModelFile, expected_shapes
from llama_herd.model.files.safetensors import SafetensorsFile, how_to_complete, weight_paths
from llama_herd.model.files.tensor_file import StoredRows
from llama_herd.model.hub.choice import ADAPTER_NAME
from llama_herd.model.reading.json_file import read_json
from llama_herd.model.reading.metadata import quoted
from llama_herd.model.shape.families import LLAMA, Family
from llama_herd.model.shape.json_shape import with_defaults
from llama_herd.model.shape.modules_json import folder_purpose
from llama_herd.model.shape.pooling import Override
from llama_herd.model.shape.purpose import Embeds, overridden
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.recommended_sampling import folder_sampling
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.model.text.tokenizer_json import TokenizerJson
from llama_herd.model.weights.weight import Weight

CONFIG_NAME = "config.json"
TOKENIZER_NAME = "tokenizer.json"
MERGING = "Load it with peft, call `merge_and_unload`, and `save_pretrained` with the tokenizer"
MAX_CONFIG_BYTES = 1 << 20

#: RoPE's frequencies in old files; they follow from config.json.
IGNORED_SUFFIX = ".rotary_emb.inv_freq"

#: What names begin with in a folder of a model without a head.
BARE_NAMES = ("embed_tokens.", "layers.", "norm.")

HEAD_NAME = "lm_head.weight"
EMBEDDING_NAME = "model.embed_tokens.weight"
#: Rows of two weights that are read at a time to compare them.
COMPARED_ROWS = 1_024

_OUTER_NAMES = {
    "token_embd.weight": EMBEDDING_NAME,
    "output_norm.weight": "model.norm.weight",
    "output.weight": HEAD_NAME,
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FUSED_NAMES = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_POST_NORM_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


class SafetensorsModel(ModelFile):
    """The checked view of a folder with config.json and model.safetensors, whole or in shards.

    with SafetensorsModel.open("Llama-2-7b-hf") as model:
        model.config.num_layers
        model.weight("blk.0.attn_q.weight")
    """

    def __init__(self, folder: Path, pooling: Override = "auto") -> None:
        self.folder = folder
        self.metadata = read_json(folder / CONFIG_NAME, MAX_CONFIG_BYTES)
        self.config = LlamaConfig.from_json(self.metadata, self.metadata.source)
        own = folder_purpose(folder, self.config.hidden_size)
        self.purpose, self.complaints = overridden(own, pooling, str(folder))
        if (folder / ADAPTER_NAME).is_file():
            problem = "an adapter, which is left out: the weights beside it are served as they are"
            self.complaints += (f"{folder / ADAPTER_NAME}: {problem}. Fix if it is not in them: {MERGING}",)
        with ExitStack() as stack:
            self._files = [stack.enter_context(SafetensorsFile.open(path)) for path in weight_paths(folder)]
            self._weights = self._checked(
                {
                    _full_name(name): file.rows(name)
                    for file in self._files  # later ones count for more
                    for name in file.tensors
                    if not name.endswith(IGNORED_SUFFIX)
                }
            )
            stack.pop_all()

    @classmethod
    def open(cls, folder: str | PathLike[str], pooling: Override = "auto") -> Self:
        """Open a folder; `pooling` is that of `open_model`.

        Raises ModelFileError when a file is missing or damaged, or it is no known Llama.
        """
        return cls(Path(folder), pooling)

    def weight(self, name: str) -> Weight:
        rows = self._weights[self._stored_name(name)]
        weight = Weight(rows.info.type, rows.info.shape, rows)
        is_shifted = self.config.family.norms_from_one and name.endswith("norm.weight")
        return _plus_one(weight) if is_shifted else weight

    @property
    def sampling(self) -> dict[str, float]:
        return folder_sampling(self.folder)

    def read_tokenizer(self) -> Tokenizer:
        tokenizer, num_rows = Tokenizer.from_json(self._tokenizer_json), self.config.vocab_size
        if tokenizer.vocab_size > num_rows:
            complaint = f"is {num_rows}, but {TOKENIZER_NAME} has {tokenizer.vocab_size} tokens"
            raise self.metadata.error("vocab_size", complaint)
        asked = self._tokenizer_json.asked_end
        if asked is not None and isinstance(self.purpose, Embeds):
            return _with_end(tokenizer, *asked)
        return tokenizer

    def read_control_tokens(self, tokenizer: Tokenizer) -> ControlTokens:
        return ControlTokens.from_json(self._tokenizer_json)

    @cached_property
    def _tokenizer_json(self) -> TokenizerJson:
        path = self.folder / TOKENIZER_NAME
        if not path.is_file():
            raise ModelFileError(
                f"{path}: missing. {how_to_complete(self.folder)} "
                "Or load the tokenizer with transformers and save it there."
            )
        return TokenizerJson.open(path, self.config.vocab_size)

    def _checked(self, tensors: Mapping[str, StoredRows]) -> dict[str, StoredRows]:
        """The weights by their GGUF names. Raises ModelFileError unless `tensors` are exactly a Llama's."""
        shapes = expected_shapes(self.config)
        names = {hf_name(name, self.config.family): name for name in shapes if name != ROPE_NAME}
        config_json = with_defaults(self.metadata, self.config.family)
        is_tied = config_json.flag("tie_word_embeddings", HEAD_NAME not in tensors)
        if is_tied and HEAD_NAME in tensors:  # a head of its own counts, whatever the flag says
            tensors = {EMBEDDING_NAME: tensors[HEAD_NAME], **tensors}
            is_tied = _is_same(tensors[HEAD_NAME], tensors[EMBEDDING_NAME])
        optional = {HEAD_NAME} if is_tied or isinstance(self.purpose, Embeds) else set()
        for name, stored in tensors.items():
            tensor = f"{stored.file.path}: tensor {quoted(stored.info.name)}"
            if name not in names:
                family = self.config.family.name
                raise ModelFileError(f"{tensor} is no part of a {family} of this shape. Take another model.")
            shape, expected = stored.info.shape, shapes[names[name]]
            if shape != expected:
                raise ModelFileError(f"{tensor} has shape {shape}, expected {expected}. Fetch it again.")
        for name in names.keys() - tensors.keys() - optional:  # nor is there one by a name of some wrapper
            raise ModelFileError(f"{self.folder}: tensor {name} is missing. {how_to_complete(self.folder)}")
        return {names[name]: stored for name, stored in tensors.items() if name not in optional}


def hf_name(name: str, family: Family = LLAMA) -> str:
    """The name of a weight in transformers, by its GGUF name."""
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    _, layer, part, kind = name.split(".")
    part_names = _LAYER_NAMES
    if family.fused:
        part_names = part_names | _FUSED_NAMES
    if family.post_norms:
        part_names = part_names | _POST_NORM_NAMES
    return f"model.layers.{layer}.{part_names[part]}.{kind}"


def _with_end(tokenizer: Tokenizer, eos_id: int, complaint: str) -> Tokenizer:
    """The tokenizer of an embedder that is older than transformers 5, which puts no EOS where a flag asks."""
    told = complaint.replace("which counts, puts none", "puts none")
    complaints = [one for one in tokenizer.complaints if one != complaint]
    complaints.append(f"{told}: as this model embeds, one is put, which its vectors were made with")
    return replace(tokenizer, last_ids=(*tokenizer.last_ids, eos_id), complaints=tuple(complaints))


def _full_name(name: str) -> str:
    """The name of a tensor in a language model: one that was saved without its head has shorter ones."""
    return f"model.{name}" if name.startswith(BARE_NAMES) else name


def _plus_one(weight: Weight) -> Weight:
    """A norm as others store it: llama.cpp's converter adds the one too."""
    import torch  # as `StoredRows` does, where weights are read

    from llama_herd.model.kernels.dequantize import dequantize

    values = dequantize(weight.blocks, weight.type) + 1
    return Weight(GGMLQuantizationType.F32, weight.shape, values.view(torch.uint8))


def _is_same(head: StoredRows, embedding: StoredRows) -> bool:
    """Whether a head is a copy of the embedding; it is read up to the first difference."""
    if head == embedding:
        return True
    if (head.info.type, head.info.shape) != (embedding.info.type, embedding.info.shape):
        return False
    return all(
        bool((head.read(rows) == embedding.read(rows)).all())
        for rows in (slice(start, start + COMPARED_ROWS) for start in range(0, len(head), COMPARED_ROWS))
    )
