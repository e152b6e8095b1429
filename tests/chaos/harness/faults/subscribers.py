"""Subscribers that never read, hardly read, or come and go: the herd does not wait for them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from time import sleep

from llama_herd.tasks.client.client import Client
from llama_herd.tasks.protocol.events import Event
from tests.chaos.harness.crowd import CrowdTurn, crowd_of, read_a_little, read_nothing, replace_oldest
from tests.chaos.harness.faults.fault import Strike
from tests.chaos.harness.herd import Herd
from tests.chaos.harness.patience import PATIENCE_S
from tests.chaos.harness.verdict import BrokenLaw

NUM_SUBSCRIBERS = 50

#: Pause of a slow reader between events: it falls behind a job that runs alone.
SLOW_S = 0.02

#: Events after which a flapping reader leaves, and most visits, enough for the longest job.
FLAP_EVENTS = 20
MAX_VISITS = 50

#: Reads a job from its first event to its end.
StreamReading = Callable[[Client, str], list[Event]]


def read_late(client: Client, job_id: str) -> list[Event]:
    return list(client.stream(job_id, timeout_s=PATIENCE_S))


def read_slowly(client: Client, job_id: str) -> list[Event]:
    events = []
    for event in client.stream(job_id, timeout_s=PATIENCE_S):
        events.append(event)
        sleep(SLOW_S)
    return events


def read_in_visits(client: Client, job_id: str) -> list[Event]:
    """Each visit begins where the last one has ended."""
    events: list[Event] = []
    for _ in range(MAX_VISITS):
        stream = client.stream(job_id, after=len(events), timeout_s=PATIENCE_S)
        for event in islice(stream, FLAP_EVENTS):
            events.append(event)
            if event.type == "end":
                return events
    return events


def crowded(turn: CrowdTurn, read: StreamReading) -> Strike:
    """A crowd listens to everything, while a reader of its kind reads a running job's whole stream."""

    @contextmanager
    def strike(herd: Herd) -> Iterator[list[str]]:
        channels = herd.jobs.ledger.channel("*")
        with crowd_of(NUM_SUBSCRIBERS, herd.server.url, channels, turn):
            met = herd.jobs.running()
            yield met
            if met and read(herd.jobs.client, met[-1]) != herd.jobs.events(met[-1]):
                raise BrokenLaw("all read the same", "a subscriber read another stream", met[-1])

    return strike


stuck_crowd = crowded(read_nothing, read_late)
slow_crowd = crowded(read_a_little, read_slowly)
flapping_crowd = crowded(replace_oldest, read_in_visits)
