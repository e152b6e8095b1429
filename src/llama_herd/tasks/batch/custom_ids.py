"""The names of rows, which must be unique."""

MAX_ID_CHARS = 512


def is_custom_id(value: object) -> bool:
    """Whether it can be a row's name: a text without lone surrogates."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARS:
        return False
    return not any("\ud800" <= char <= "\udfff" for char in value)


class CustomIds:
    """Which line used a name first. It keeps only 64 bits per name, so that a million fit into memory."""

    def __init__(self) -> None:
        self._lines: dict[int, int] = {}

    def first_line(self, custom_id: str, line: int) -> int:
        """The earlier line with this name. If there is none, `line`, which now owns the name."""
        return self._lines.setdefault(hash(custom_id), line)
