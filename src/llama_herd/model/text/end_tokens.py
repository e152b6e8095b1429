"""Names of the tokens that end a generation: files often say only one of those that their model ends with.

The names are llama.cpp's. Unlike there, a token of such a name among the words of a vocabulary, as is "</s>"
in Qwen 2's, is text: callers ask about added tokens only.
"""

from collections.abc import Collection

#: Ends of a text, of a turn, of a message, of a call.
ENDS = frozenset(
    (
        *("</s>", "<eos>", "[EOS]", "<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>"),
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>", "<end_of_utterance>", "[e~["),
        *("<EOT>", "_<EOT>", "[EOT]", "<|eom_id|>"),
        *("<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<|tool_response>"),
    )
)

#: Where completed code ends, by the key of a GGUF file that names it and else by its name.
_FIM = "tokenizer.ggml.fim_{}_token_id"
CODE_ENDS = {
    _FIM.format("pad"): {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"},
    _FIM.format("rep"): {"<|fim_repo|>", "<fim-repo>", "<|repo_name|>", "<reponame>", "<REPO>"},
    _FIM.format("sep"): {"<|file_sep|>"},
}

#: Names that end nothing in a vocabulary that has all of these, too.
_NO_ENDS = (
    ("<|end|>", {"<|return|>", "<|call|>"}),
    ("<|end|>", {"<|calls|>", "<|flush|>"}),
    ("</s>", {"<|tool_response>"}),
    ("</s>", {"<|plamo:eos|>"}),
)


def end_names(tokens: Collection[str], known_roles: Collection[str] = ()) -> set[str]:
    """Filter added tokens to those that end a generation; ends of code only for roles not known by id."""
    code = {name for role, names in CODE_ENDS.items() if role not in known_roles for name in names}
    no_ends = {name for name, company in _NO_ENDS if company <= set(tokens)}
    return set(tokens) & ((ENDS - no_ends) | code)
