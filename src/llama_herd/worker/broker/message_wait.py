"""How a worker learns that queues have messages: it looks, and then waits to be told. It takes none by that.

BRPOP takes a message while the worker waits, which is lost if the worker ends before it has noted it.
"""

from collections.abc import Mapping, Sequence
from math import inf
from time import monotonic
from typing import Any

from redis.exceptions import ResponseError

#: How long to wait where Redis does not tell. No user of `herd acl` may ask for that: who may could see the
#: names of all keys that change (BCAST).
UNTOLD_S = 0.02


class MessageWait:
    """One look at the lists of some queues, and the wait that follows if all are empty.

    Redis tells a connection once when a key changes that it has read: CLIENT TRACKING, in RESP3. The look is
    such a reading, so nothing comes unnoticed between the two.
    """

    def __init__(self, connection: Any, lists: Mapping[str, Sequence[str]], longest_s: float) -> None:
        """Send the look. `lists`: by queue. `longest_s`: how long to wait. Raises RedisError."""
        self._connection = connection
        self._queues = [*lists]
        self._longest_s = longest_s
        self._is_answered = False
        #: When the wait is over, on the monotonic clock; nobody knows before the look is answered.
        self.until_s = inf
        #: Why Redis does not tell; None: it does.
        self.refusal: ResponseError | None = None
        looks = [("EXISTS", *names) for names in lists.values()]
        connection.send_packed_command(connection.pack_commands([("CLIENT", "TRACKING", "ON"), *looks]))

    def read(self, delay_s: float) -> Sequence[str]:
        """Read what has come, and return the queues that have messages. If none has, `until_s` says more.

        `delay_s`: how long the wait goes on once a list has changed. Raises RedisError.
        """
        if self._is_answered:
            self._connection.read_response(push_request=True)
            self._end_in(delay_s)
            return ()
        tracking, *counts = [self._answer() for _ in ("tracking", *self._queues)]
        self._is_answered = True
        for count in counts:
            if isinstance(count, ResponseError):
                raise count
        self.refusal = tracking if isinstance(tracking, ResponseError) else None
        self._end_in(UNTOLD_S if self.refusal else self._longest_s)
        if self._connection.can_read():  # the parser may have it already, and then no poll tells of it
            self._end_in(delay_s)
        return [queue for queue, count in zip(self._queues, counts, strict=True) if count]

    def _end_in(self, seconds: float) -> None:
        self.until_s = min(self.until_s, monotonic() + seconds)

    def _answer(self) -> Any:
        """The next answer of Redis to the look, without what it tells of changes: these are lists or None."""
        while True:
            try:
                answer = self._connection.read_response(push_request=True)
            except ResponseError as error:
                return error
            if isinstance(answer, int | bytes):
                return answer
