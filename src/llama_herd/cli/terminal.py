"""Text between a person's terminal and a model."""

import sys

from llama_herd.errors import BadInput

#: A book of a thousand pages has 3 MB.
MAX_STDIN_BYTES = 64 << 20

#: Control characters except tab and line feed: they could move the cursor, or do worse.
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


def harmless(text: str) -> str:
    """`text` without its control characters; tabs and line feeds stay."""
    return text.translate(_CONTROLS)


def text_or_stdin(text: str) -> str:
    """`text`, or for - the text of standard input without its last line feed. Raises BadInput."""
    if text != "-":
        return checked_text(text, "the text")
    try:
        content = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
        if len(content) > MAX_STDIN_BYTES:
            raise BadInput(
                f"standard input is longer than {MAX_STDIN_BYTES:,} bytes. Fix: send a shorter text"
            )
        return content.decode().removesuffix("\n")
    except OSError as error:
        raise BadInput(f"standard input cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not UTF-8 text: byte {error.start} is invalid") from None


def checked_text(text: str, name: str) -> str:
    """`text` from the command line. Raises BadInput, with its name, if its bytes were not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{name} is not UTF-8 text: character {error.start} is invalid") from None
    return text
