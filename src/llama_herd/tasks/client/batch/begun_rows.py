"""The rows of a batch whose jobs are in Redis, for ending a batch that another process has left."""

from collections import deque

from llama_herd.tasks.client.batch.parked_rows import MAX_PARKED
from llama_herd.tasks.client.batch.row_feed import RowJob
from llama_herd.tasks.client.batch.window import BatchWindow
from llama_herd.tasks.ledger.redis_call import together


class BegunRows(BatchWindow):
    """A window that submits nothing: its items are those of jobs that are in Redis already.

    A batch submits its rows in their order, but for those that it parks. So once none of so many rows was
    submitted, none behind them was.
    """

    may_park = False
    _num_unsubmitted = 0

    async def _submit(self, now_s: float) -> None:
        ledger, rows, self._waiting = self._core.ledger, list(self._waiting), deque[RowJob]()
        states = await together([ledger.state(one.job_id) for one in rows])
        purged = await together([ledger.is_purged(one.job_id) for one in rows])
        found = [*zip(rows, states, purged, strict=True)]
        new = [state is not None or is_purged for one, state, is_purged in found if one.number == 1]
        for one, state, is_purged in found:
            if state is not None:
                self._under_way[one.job_id] = one
            elif is_purged:  # and so it was tried again, under its next id
                one.number += 1
                self._waiting.append(one)
            else:
                self._room.free([one.row.index])
        self._num_unsubmitted = 0 if any(new) else self._num_unsubmitted + len(new)
        if self._num_unsubmitted > MAX_PARKED:
            self.stop()
