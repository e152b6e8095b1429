"""The bundled model's file: a GGUF file of a trained transformers Llama, Q8_0 matrices and F32 norms."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np
import sentencepiece
from gguf import GGMLQuantizationType, LlamaFileType, TokenType
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM

PATH = Path(__file__).parent.parent / "src" / "llama_herd" / "model" / "bundled" / "tales.gguf"

CHAT_TEMPLATE = """\
{%- set system = '' -%}
{%- if messages[0]['role'] == 'system' -%}
{%- set system = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' -%}
{%- set messages = messages[1:] -%}
{%- endif -%}
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}
{{- bos_token + '[INST] ' + (system if loop.first else '') + message['content'].strip() + ' [/INST]' -}}
{%- else -%}
{{- ' ' + message['content'].strip() + ' ' + eos_token -}}
{%- endif -%}
{%- endfor -%}"""

_BLOCK_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTER_NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def write(path: Path, model: "LlamaForCausalLM", pieces: sentencepiece.SentencePieceProcessor) -> None:
    """Writes the model with its vocabulary and chat template, and its SHA-256 beside it."""
    writer = gguf.GGUFWriter(path, "llama")
    _add_description(writer)
    _add_shape(writer, model.config)
    _add_vocabulary(writer, pieces)
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":  # tied: the embedding is used twice
            _add_weight(writer, name, weight, model.config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.with_suffix(".gguf.sha256").write_text(f"{digest}  {path.name}\n", encoding="ascii")


def _add_description(writer: gguf.GGUFWriter) -> None:
    writer.add_name("Tales")
    writer.add_description("Tells simple tales, continues lists, answers questions about a text")
    writer.add_license("Apache-2.0")
    writer.add_languages(["en"])
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_shape(writer: gguf.GGUFWriter, config: "LlamaConfig") -> None:
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])


def _add_vocabulary(writer: gguf.GGUFWriter, pieces: sentencepiece.SentencePieceProcessor) -> None:
    ids = range(pieces.vocab_size())
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([pieces.id_to_piece(token) for token in ids])
    writer.add_token_scores([pieces.get_score(token) for token in ids])
    writer.add_token_types([_token_type(pieces, token) for token in ids])
    writer.add_unk_token_id(pieces.unk_id())
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_eos_token_id(pieces.eos_id())
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)
    writer.add_chat_template(CHAT_TEMPLATE)


def _token_type(pieces: sentencepiece.SentencePieceProcessor, token: int) -> TokenType:
    if pieces.is_unknown(token):
        return TokenType.UNKNOWN
    if pieces.is_control(token):
        return TokenType.CONTROL
    return TokenType.BYTE if pieces.is_byte(token) else TokenType.NORMAL


def _add_weight(writer: gguf.GGUFWriter, name: str, weight: Tensor, config: "LlamaConfig") -> None:
    array = weight.float().numpy()
    if name.endswith("q_proj.weight"):
        array = _interleave_rope(array, config.num_attention_heads)
    elif name.endswith("k_proj.weight"):
        array = _interleave_rope(array, config.num_key_value_heads)
    if array.ndim == 1:
        writer.add_tensor(gguf_name(name), array)
    else:
        blocks = gguf.quants.quantize(array, GGMLQuantizationType.Q8_0)
        writer.add_tensor(gguf_name(name), blocks, raw_dtype=GGMLQuantizationType.Q8_0)


def gguf_name(name: str) -> str:
    """The GGUF name of a transformers weight."""
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", maxsplit=3)
    return f"blk.{layer}.{_BLOCK_NAMES[part]}.weight"


def _interleave_rope(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """GGUF's row order of Q and K: the two halves of a head that RoPE turns together lie row by row."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, 2, rows // num_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
