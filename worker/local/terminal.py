"""Text between a person's terminal and a model."""

import sys

from llama_herd.errors import BadInput

#: A book of a thousand pages has 3 MB.
MAX_STDIN_BYTES = 64 << 20

#: Control characters, which could move the cursor or worse; all but tab and line feed.
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


def harmless(text: str) -> str:
    """`text` without its control characters; tabs and line feeds stay."""
    return text.translate(_CONTROLS)


def text_or_stdin(text: str) -> str:
    """`text`, or for - what comes by standard input, without its last line feed. Raises BadInput."""
    if text != "-":
        return checked_text(text, "the text")
    try:
        content = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
        if len(content) > MAX_STDIN_BYTES:
            raise BadInput(f"standard input is longer than {MAX_STDIN_BYTES:,} bytes. Fix: a shorter text")
        return content.decode().removesuffix("\n")
    except OSError as error:
        raise BadInput(f"standard input cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not UTF-8 text: byte {error.start} is no part of it") from None


def checked_text(text: str, name: str) -> str:
    """`text` as the command line had it. Raises BadInput, which names it, when its bytes were no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{name} is not UTF-8 text: its character {error.start} is none") from None
    return text
