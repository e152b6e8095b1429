"""What a GGUF file says that its model is for."""

import re

from llama_herd.model.reading.metadata import Metadata, quoted
from llama_herd.model.shape.pooling import Pooling
from llama_herd.model.shape.purpose import YES_NO, Embeds, Generates, Purpose, Ranks, jinja_of

#: What helps a file that says of itself only a part of what ranking needs.
WHOLE_RERANKER = "Take a file that llama.cpp has converted from the folder, or the folder itself."


def gguf_purpose(metadata: Metadata, architecture: str) -> Purpose:
    """The purpose of a GGUF file. Raises ModelFileError, which names the key."""
    key = f"{architecture}.pooling_type"
    number = metadata.integer(key, 0, 4, 0)
    poolings = {1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}
    if number in poolings:
        return Embeds(poolings[number])
    return _gguf_ranks(metadata, architecture) if number == 4 else Generates()


def _gguf_ranks(metadata: Metadata, architecture: str) -> Ranks:
    """As llama.cpp's converter writes a Qwen3-Reranker; scores of a file that lacks a part say nothing."""
    key = f"{architecture}.classifier.output_labels"
    labels = metadata.strings(key) if key in metadata else ()
    if labels != YES_NO:
        problem = f"is {quoted(labels)}" if labels else "is missing"
        raise metadata.error(key, f"{problem}, {quoted(YES_NO)} is needed to rank", WHOLE_RERANKER)
    template_key = "tokenizer.chat_template.rerank"
    if template_key not in metadata:
        raise metadata.error(template_key, "is missing, which is needed to rank", WHOLE_RERANKER)
    template = metadata.text(template_key)
    if not {"{query}", "{document}"} <= set(re.findall(r"\{\w+\}", template)):
        raise metadata.error(template_key, "lacks {query} or {document}", WHOLE_RERANKER)
    return Ranks(template=jinja_of(template))
