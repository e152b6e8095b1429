"""Text of a model on a person's terminal."""

#: Control characters, which could move the cursor or worse; all but tab and line feed.
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


def harmless(text: str) -> str:
    """`text` without its control characters; tabs and line feeds stay."""
    return text.translate(_CONTROLS)
