"""Text between a person's terminal and a model."""

import sys

from llama_herd.errors import BadInput

#: Control characters, which could move the cursor or worse; all but tab and line feed.
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


def harmless(text: str) -> str:
    """`text` without its control characters; tabs and line feeds stay."""
    return text.translate(_CONTROLS)


def text_or_stdin(text: str) -> str:
    """`text`, or for - what comes by standard input, without its last line feed. Raises BadInput."""
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not UTF-8 text: byte {error.start} is no part of it") from None
