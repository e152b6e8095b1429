"""Models whose tokens see those after them, and those that name classes: refused by what their files say."""

from llama_herd.model.reading.metadata import OTHER_MODEL, Metadata, quoted

BIDIRECTIONAL = "its tokens see those after them, which is not supported"
OTHER_EMBEDDER = "Take an embedder that is causal, such as Qwen3-Embedding."

#: What files of such models call their architecture, or `model_type`, by a part of the name.
NAMES = ("bert", "bidirec", "gemma-embedding")
#: Ends of a class in config.json whose head is no language model's.
HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def is_bidirectional(named: str) -> bool:
    """Whether an architecture, a `model_type` or a class is known to be bidirectional, by its name."""
    return any(name in named.lower() for name in NAMES)


def refuse_other_heads(config_json: Metadata) -> None:
    """Raise ModelFileError for a config.json of a model that is bidirectional, or names classes."""
    if config_json.get("use_bidirectional_attention") is True:
        raise config_json.error("use_bidirectional_attention", f"is true: {BIDIRECTIONAL}", OTHER_EMBEDDER)
    if not config_json.flag("is_causal", True):
        raise config_json.error("is_causal", f"is false: {BIDIRECTIONAL}", OTHER_EMBEDDER)
    stated = config_json.get("architectures")
    for name in stated if isinstance(stated, list) else ():
        if str(name).endswith(HEADS):
            problem = f"is {quoted(name)}, whose head is no language model's: it is not supported"
            raise config_json.error("architectures", problem, OTHER_MODEL)
        if is_bidirectional(str(name)):
            raise config_json.error("architectures", f"is {quoted(name)}: {BIDIRECTIONAL}", OTHER_EMBEDDER)
