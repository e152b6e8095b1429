"""The shape in GGUF files, where families differ: windows, scales, soft caps."""

from collections.abc import Mapping

import numpy as np

from llama_herd.model.reading.metadata import (
    MAX_CONTEXT,
    MAX_LAYERS,
    MAX_ROPE_BASE,
    MAX_VOCAB,
    OTHER_MODEL,
    Metadata,
    NotedMetadata,
    quoted,
)
from llama_herd.model.shape.bidirectional import BIDIRECTIONAL, OTHER_EMBEDDER
from llama_herd.model.shape.families import Family, layer_windows, local_layers

#: Keys of a GGUF file after its architecture that change no logit, whatever they are.
HARMLESS_KEYS = frozenset(
    {
        "attention.layer_norm_epsilon",  # of norms with a mean, which no family here has
        "classifier.output_labels",  # of what the model is for, as is its pooling: `purpose.py` reads both
        "expert_used_count",
        "pooling_type",
        "rope.scaling.finetuned",
        "tensor_data_layout",
        "vocab_size",
    }
)
#: Beginnings of keys that change no result, since they are of the part that sees images, another file.
IMAGE_PREFIXES = ("vision.", "mm.")
#: Keys that change no result as long as they have this value.
NEUTRAL_VALUES: Mapping[str, object] = {
    "expert_count": 0,
    "attention.causal": True,
    "use_parallel_residual": True,  # written for all, read for GPT-NeoX
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}
#: Keys whose 0 is as good as no key, as in llama.cpp.
ZERO_IS_ABSENT = (
    "rope.scaling.factor",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
    "attention.scale",
)
#: Keys that may have a number for each layer.
PER_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")


def plain_gguf(metadata: Metadata, architecture: str) -> Metadata:
    """The metadata without zeros that say nothing, and with one number where all layers have the same."""
    values = dict(metadata)
    for key in (f"{architecture}.{name}" for name in ZERO_IS_ABSENT):
        if isinstance(values.get(key), int | float) and not values[key]:
            del values[key]
    num_layers = values.get(f"{architecture}.block_count")
    for key in (f"{architecture}.{name}" for name in PER_LAYER):
        numbers = values.get(key)
        if not isinstance(numbers, np.ndarray) or numbers.dtype.kind not in "iu":
            continue
        if isinstance(num_layers, int) and len(numbers) == num_layers and len({*numbers.tolist()}) == 1:
            values[key] = int(numbers[0])
    return Metadata(values, metadata.source)


def gguf_vocab_size(metadata: Metadata, architecture: str) -> int:
    """The tokens count; `vocab_size` stands in for them in a file without a tokenizer."""
    key = "tokenizer.ggml.tokens"
    if key not in metadata:
        return metadata.integer(f"{architecture}.vocab_size", 1, MAX_VOCAB)
    vocab_size = len(metadata.strings(key))
    if not 1 <= vocab_size <= MAX_VOCAB:
        raise metadata.error(key, f"has {vocab_size} elements, allowed are 1 to {MAX_VOCAB}")
    return vocab_size


def gguf_local_rope_base(metadata: Metadata, family: Family) -> float:
    """RoPE's base in layers with a window; 0: that of all layers."""
    if not family.local_rope_base:
        return 0.0
    key = f"{family.architecture}.rope.freq_base_swa"
    return metadata.number(key, 1, MAX_ROPE_BASE, family.local_rope_base)


def gguf_windows(metadata: Metadata, family: Family, num_layers: int) -> tuple[int, ...]:
    """Each layer's window. A pattern is a period, whose last layer sees all, or a flag for each layer."""
    key = f"{family.architecture}.attention.sliding_window"
    window = metadata.integer(key, 0, MAX_CONTEXT, family.gguf_window)
    pattern = metadata.get(f"{key}_pattern")
    if isinstance(pattern, np.ndarray):
        has_window = metadata.array(f"{key}_pattern", "b", num_layers).tolist()
    else:
        period = metadata.integer(f"{key}_pattern", 0, MAX_LAYERS, family.global_every)
        has_window = local_layers(period, num_layers)
    return layer_windows(window, has_window)


def gguf_scales(metadata: Metadata, family: Family) -> dict[str, float]:
    """The scales and soft caps, by the names of a config's fields."""
    keys = dict(family.caps)
    if family.multipliers:
        keys |= {
            "embedding_scale": "embedding_scale",
            "residual_scale": "residual_scale",
            "attention_scale": "attention.scale",
            "logit_divisor": "logit_scale",
        }
        finetuned = f"{family.architecture}.rope.scaling.finetuned"
        if not metadata.flag(finetuned, True):
            raise metadata.error(finetuned, "is false: this one is without RoPE", OTHER_MODEL)
    stated = metadata.numbers({field: f"{family.architecture}.{key}" for field, key in keys.items()})
    return {**family.gguf_caps, **stated}


def refuse_unread_gguf_keys(metadata: NotedMetadata, architecture: str) -> None:
    """Refuse what nobody has read and what may change the result."""
    prefix = f"{architecture}."
    for key in metadata:
        name = key.removeprefix(prefix)
        if not key.startswith(prefix) or key in metadata.noted:
            continue
        if name in HARMLESS_KEYS or name.startswith(IMAGE_PREFIXES):
            continue
        value, neutral = metadata[key], NEUTRAL_VALUES.get(name)
        if name == "attention.causal" and value is False:
            raise metadata.error(quoted(key), f"is False: {BIDIRECTIONAL}", OTHER_EMBEDDER)
        if type(value) is not type(neutral) or value != neutral:
            raise metadata.error(quoted(key), f"is {quoted(value)}, which is not supported", OTHER_MODEL)
