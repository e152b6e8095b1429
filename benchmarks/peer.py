"""The peer: transformers' own Llama on the same weights, one static batch after the other."""

from typing import Any

import torch

from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.files.model_file import expected_shapes
from llama_herd.model.files.safetensors_model import hf_name
from llama_herd.model.kernels.dequantize import dequantize


def load_peer(file: GGUFModel, dtype: torch.dtype = torch.float32) -> Any:
    """A LlamaForCausalLM with the weights of a model file."""
    # Whoever only reads the names of benchmarks waits for two seconds less.
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.initialization import no_init_weights

    config = file.config
    with no_init_weights():
        peer = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                num_hidden_layers=config.num_layers,
                intermediate_size=config.ffn_size,
                num_attention_heads=config.num_heads,
                num_key_value_heads=config.num_kv_heads,
                max_position_embeddings=config.context_length,
                rms_norm_eps=config.rms_eps,
                rope_theta=config.rope_base,
            )
        )
    names = [name for name in expected_shapes(config) if name != "rope_freqs.weight"]
    state = {hf_name(name): _values(file, name).to(dtype) for name in names}
    peer.load_state_dict(state, assign=True)
    return peer.eval()


@torch.inference_mode()
def generate(peer: Any, prompts: list[list[int]], max_tokens: int) -> int:
    """Generate `max_tokens` for each prompt, greedily, in one batch. Returns the number of tokens."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out = peer.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=max_tokens,
        min_new_tokens=max_tokens,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    return int(out.shape[0] * (out.shape[1] - longest))


def _values(file: GGUFModel, name: str) -> torch.Tensor:
    weight = file.weight(name)
    return dequantize(weight.blocks, weight.type).reshape(weight.shape)
