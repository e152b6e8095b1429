"""The sampling that a model's makers recommend: in a GGUF file, or in generation_config.json."""

from collections.abc import Iterable
from pathlib import Path

from llama_herd.model.reading.metadata import Metadata
from llama_herd.model.text.special_tokens import read_beside
from llama_herd.model.text.tokenizer_json import COPY_KEY

#: Fields of a job by the names of generation_config.json, which vLLM takes too.
NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
#: And by the keys of GGUF, behind `general.sampling.`.
KEYS = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
    "penalty_last_n": "repeat_last_n",
}


def metadata_sampling(metadata: Metadata) -> dict[str, float]:
    """That of a GGUF file, by the names of a job's fields."""
    return _numbers((name, metadata.get(f"general.sampling.{key}")) for key, name in KEYS.items())


def folder_sampling(folder: Path) -> dict[str, float]:
    """That of a Hugging Face folder. What a program has made of a config.json is nobody's recommendation."""
    told = read_beside(folder, "generation_config.json")
    return {} if told.get(COPY_KEY) is True else _numbers((name, told.get(name)) for name in NAMES)


def _numbers(found: Iterable[tuple[str, object]]) -> dict[str, float]:
    # A GGUF file has floats of 32 bits.
    return {
        name: round(value, 6)
        for name, value in found
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
