"""Text from which the white space beside marks is gone."""

SPACE = " \t\n\r"


class TrimmedText:
    """Withholds white space at its end until something follows.

    White space beside a mark is dropped where the text begins or ends there. Between two texts that before
    the mark stays, and if there is none, that behind it.
    """

    def __init__(self) -> None:
        self._ready: list[str] = []
        self._waiting: list[str] = []  # white space
        self._is_empty = True
        self._follows_mark = False
        self._drops_space = False

    def write(self, text: str) -> None:
        if self._drops_space:
            text = text.lstrip(SPACE)
        words = text.rstrip(SPACE)
        if words:
            self._ready += [*self._waiting, words]
            self._waiting.clear()
            self._is_empty = self._follows_mark = self._drops_space = False
        if len(words) < len(text):
            self._waiting.append(text[len(words) :])

    def cut(self) -> None:
        """Note that a mark stands here in the text."""
        if self._is_empty:
            self._waiting.clear()
        self._follows_mark = True
        self._drops_space = self._is_empty or bool(self._waiting)

    def finish(self) -> None:
        """Note that the text has ended."""
        if not self._follows_mark:
            self._ready += self._waiting
        self._waiting.clear()

    def take(self) -> str:
        """Take the text that nothing can change any more, and that has not been taken before."""
        ready = "".join(self._ready)
        self._ready.clear()
        return ready
