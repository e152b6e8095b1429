"""What errors say of a file: that it is damaged, or a value of it, as far as it helps to find it."""

from llama_herd.errors import ModelFileError

MAX_CHARS = 60


def quoted(value: object) -> str:
    """`value` as Python would write it, cut to 60 characters."""
    shown = repr(value)
    return shown if len(shown) <= MAX_CHARS else f"{shown[:MAX_CHARS]}..."


def damaged(source: str, problem: str) -> ModelFileError:
    """The error for a file that says what cannot be. Files are hardly ever made so, but often cut off."""
    return ModelFileError(f"{source}: {problem}. The file is damaged or cut off: fetch it again.")
