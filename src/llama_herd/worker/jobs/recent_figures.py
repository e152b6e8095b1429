"""RecentFigures: rates and latencies of one tenant's jobs on this worker, for `herd status`."""

import threading
from collections import deque
from collections.abc import Callable
from statistics import median
from time import monotonic

#: The rate of tokens is that of this time, the first token that of the jobs which ended within this time.
RATE_S = 10.0
ENDS_S = 60.0
#: Tokens are counted in slices of this length.
SLICE_S = 1.0
#: Most ends that are kept: more do not change a median.
MAX_ENDS = 512


class RecentFigures:
    """Rates of tokens and times to first tokens over the last seconds. Any thread may call it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._slices: deque[tuple[float, int]] = deque()  # when it began, and its tokens
        self._first_tokens: deque[tuple[float, float]] = deque(maxlen=MAX_ENDS)  # when it was, and ttft

    def note_tokens(self, num_tokens: int) -> None:
        """Note that so many tokens were drawn in a step."""
        now_s = self._clock()
        with self._lock:
            if self._slices and now_s - self._slices[-1][0] < SLICE_S:
                began_s, num_before = self._slices.pop()
                self._slices.append((began_s, num_before + num_tokens))
            elif num_tokens:
                self._slices.append((now_s, num_tokens))
            while self._slices and now_s - self._slices[0][0] > RATE_S:
                self._slices.popleft()

    def note_end(self, ttft_s: float | None) -> None:
        """Note that a job has ended; its first token came `ttft_s` after the job was due."""
        if ttft_s is not None:
            with self._lock:
                self._first_tokens.append((self._clock(), ttft_s))

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second within the last seconds; from the first one on if that is not so long ago."""
        now_s = self._clock()
        with self._lock:
            recent = [one for one in self._slices if now_s - one[0] <= RATE_S]
        if not recent:
            return 0.0
        return sum(num_tokens for _, num_tokens in recent) / max(SLICE_S, now_s - recent[0][0])

    @property
    def ttft_s(self) -> float:
        """Median time to the first token of the jobs that ended within the last minute; 0: none did."""
        now_s = self._clock()
        with self._lock:
            recent = [ttft_s for at_s, ttft_s in self._first_tokens if now_s - at_s <= ENDS_S]
        return median(recent) if recent else 0.0
