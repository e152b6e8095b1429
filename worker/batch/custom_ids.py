"""The names of rows, of which no two may be equal."""

MAX_ID_CHARS = 512


def is_custom_id(value: object) -> bool:
    """Whether it can be written as a name: a text, without halves of characters."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARS:
        return False
    return not any("\ud800" <= char <= "\udfff" for char in value)


class CustomIds:
    """Which line had a name first. Of each name it keeps 64 bits: a million must not fill the memory."""

    def __init__(self) -> None:
        self._lines: dict[int, int] = {}

    def first_line(self, custom_id: str, line: int) -> int:
        """The line that came with this name before, else `line`, which has it from now on."""
        return self._lines.setdefault(hash(custom_id), line)
