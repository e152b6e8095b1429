"""The kinds of errors about model files, so that thousands can be counted."""

import re
from pathlib import Path

#: What a kind is called, and what its texts hold; the first that fits counts.
KINDS = {
    "another kind of file": r"is needed\. |part of a model|without config\.json|no such file|empty file",
    "another version or byte order": r"GGUF version|big-endian",
    "missing file, tensor or key": r"missing|holds no tensors|holds neither",
    "over a limit": r"over the limit|than the limit|has over|limit \d|is the limit|allowed|names \d+ files",
    "cut off, or too long for its file": r"are left|bytes long|ended at byte",
    "no text or no JSON": r"not UTF-8|not JSON|holds a \w+, an object|surrogate",
    "value of no known type": r"value type \d+|boolean is|NaN|holds infinity|not a power of two|UINT32",
    "empty or double name": r"is empty|appears twice|as well\. Fetch",
    "overlap, gap or wrong place": r"has offset|data_offsets|begins at byte|ends at|bytes follow",
    "tensor type that is not read": r"of type \w+, wh|dtype is",
    "family or feature that is not built": r"supported|no part of a|Take a|is false|not 1|RoPE|scales",
    "tokenizer that cannot be built": r"token|vocab|model\.type|decoder|normalizer|merges",
    "number or value that cannot be": r"of type|must|is not|elements|multiple|keys have|holds|which is no",
    "shape or part that does not fit": r"has shape|shape is|split",
}


def kind_of(message: str, path: Path) -> str:
    """The kind of an error about what lies at a path."""
    text = message.replace(str(path), "").replace(str(path.parent), "")
    return next((kind for kind, words in KINDS.items() if re.search(words, text)), f"other: {text[:80]}")
