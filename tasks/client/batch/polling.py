"""How long to wait between two looks at what is under way."""

MIN_PAUSE_S = 0.005
MAX_PAUSE_S = 0.2

#: Ended jobs that a look should find: their places are empty until then.
_WANTED = 2


class Pace:
    """Looks more often where jobs end fast, and seldom where they take their time."""

    def __init__(self) -> None:
        self.pause_s = MIN_PAUSE_S

    def note(self, num_ended: int) -> None:
        """So many ended between two looks."""
        factor = 1.5 if num_ended == 0 else 1.0 if num_ended <= _WANTED else 0.5
        self.pause_s = min(MAX_PAUSE_S, max(MIN_PAUSE_S, self.pause_s * factor))
