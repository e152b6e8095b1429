"""How long to wait between two rounds of a batch."""

MIN_PAUSE_S = 0.005
MAX_PAUSE_S = 0.2

#: Ended jobs that a round should find. Until then their places in the window are empty.
_WANTED = 2


class PollPace:
    """Short pauses if jobs end fast, long ones if they take their time."""

    def __init__(self) -> None:
        self.pause_s = MIN_PAUSE_S

    def note(self, num_ended: int) -> None:
        """Adapt the pause: `num_ended` jobs have ended since the last round."""
        factor = 1.5 if num_ended == 0 else 1.0 if num_ended <= _WANTED else 0.5
        self.pause_s = min(MAX_PAUSE_S, max(MIN_PAUSE_S, self.pause_s * factor))
