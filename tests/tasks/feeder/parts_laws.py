"""What parts of a batch keep to in every storage: no row has two lines, whoever writes without the batch."""

import random

from redis import Redis

from llama_herd.tasks.batch.answers import answered_row
from llama_herd.tasks.batch.row_request import RowRequest
from llama_herd.tasks.client.batch.batch_row import BatchItem, BatchRow
from llama_herd.tasks.feeder.answer_parts import AnswerParts
from llama_herd.tasks.feeder.batch_lease import BatchLease
from llama_herd.tasks.ledger.batch_records import BatchRecords, BatchRequest
from llama_herd.tasks.ledger.redis_call import run_call
from llama_herd.tasks.ledger.stored_files import NewFile, Quota, StoredFiles
from llama_herd.tasks.protocol.events import Failure
from llama_herd.tasks.storage.storage import Storage

NUM_ROWS = 60


def items(*numbers: int) -> list[BatchItem]:
    failure = Failure(code="any", message="any", retriable=False)
    return [
        BatchItem(BatchRow(number, tag=RowRequest(f"c{number}")), job_id="j", rejection=failure)
        for number in numbers
    ]


class Batch:
    """A batch that one feeder after the other takes."""

    def __init__(self, redis: Redis, storage: Storage) -> None:
        self._redis = redis
        self._storage = storage
        self._records = BatchRecords("acme", storage.id)
        none = Quota(0, 0)
        files = StoredFiles("acme", storage.id)
        run_call(redis, files.add(NewFile("file-1", "in", "batch", 0), none, none))
        run_call(
            redis, self._records.create("batch_1", BatchRequest("file-1", "/v1/completions", "24h"), 10**8)
        )

    def taken(self) -> AnswerParts:
        """By another feeder, although the last one has not gone."""
        self._redis.zadd(self._records.due_key, {"acme/batch_1": 1})
        claimed = run_call(self._redis, self._records.claim("batch_1", 60_000))
        assert claimed is not None
        return AnswerParts(self._storage, "acme", BatchLease(self._redis, "", self._records, claimed, 60.0))


def rows_of(parts: AnswerParts) -> list[int | None]:
    return [answered_row(line, "1") for line in parts.lines("errors")]


def check_each_row_has_one_line(batch: Batch, seed: int) -> None:
    """Feeders come and go; the gone ones write on what they were at, at any time."""
    draw = random.Random(seed)
    feeders = [batch.taken()]
    left = set(range(NUM_ROWS))
    while left:
        current = feeders[-1]
        action = draw.random()
        if action < 0.2:
            feeders.append(batch.taken())
            left = {row for row in range(NUM_ROWS) if row not in feeders[-1].done}
        elif action < 0.4 and len(feeders) > 1:
            gone = draw.choice(feeders[:-1])
            gone.write(
                items(*(row for row in range(NUM_ROWS) if row not in gone.done and draw.random() < 0.1))
            )
        else:
            some = draw.sample(sorted(left), min(len(left), draw.randint(1, 5)))
            current.write(items(*some))
            left -= {*some}
    rows = rows_of(feeders[-1])
    assert sorted(row for row in rows if row is not None) == list(range(NUM_ROWS))
    for one in feeders:
        one.__exit__()
