"""What subscribers cost a worker: tokens a second beside 50 that listen to every job.

    python -m benchmarks.subscribers [--write]

The bundled model in one worker process, several rounds. The stuck never read, the slow read some bytes of
each connection ten times a second, the flapping leave after some messages and come again.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from urllib.parse import urlsplit

from benchmarks.conditions import conditions
from benchmarks.measured import Report, Table, run_command
from benchmarks.warm_worker import warm_worker
from llama_herd.tasks.ledger import Ledger
from llama_herd.tasks.sampling import SamplingParams

READ_BYTES = 1024
FLAP_BYTES = 20_000
PAUSE_S = 0.1


@dataclass(frozen=True)
class Plan:
    rows: int = 16
    num_jobs: int = 64
    max_tokens: int = 200
    rounds: int = 7
    subscribers: int = 50


Turn = Callable[[str, list[socket.socket]], None]


def subscribe(url: str) -> socket.socket:
    """A connection to which every event of every job is sent."""
    address = urlsplit(url)
    one = socket.create_connection((address.hostname, address.port))
    one.sendall(f"PSUBSCRIBE {Ledger().channel('*')}\r\n".encode())
    return one


def read_some(one: socket.socket) -> int:
    """How many bytes were there to read; 0 as well when Redis has cut the connection."""
    try:
        return len(one.recv(READ_BYTES, socket.MSG_DONTWAIT))
    except (BlockingIOError, ConnectionError):
        return 0


def never(url: str, crowd: list[socket.socket]) -> None:
    """Read nothing."""


def slowly(url: str, crowd: list[socket.socket]) -> None:
    """Read a little of each."""
    for one in crowd:
        read_some(one)


def flapping(url: str, crowd: list[socket.socket]) -> None:
    """The oldest reads its part and leaves, another comes."""
    with crowd.pop(0) as oldest:
        num_left = FLAP_BYTES
        while num_left > 0 and (num_read := read_some(oldest)):
            num_left -= num_read
    crowd.append(subscribe(url))


ALONE = "none"
TURNS: dict[str, Turn] = {ALONE: never, "stuck": never, "slow": slowly, "flapping": flapping}


@contextmanager
def crowd_of(num: int, url: str, turn: Turn) -> Iterator[None]:
    """As many subscribers, who take their turns as long as this lasts."""
    crowd, is_over = [subscribe(url) for _ in range(num)], threading.Event()

    def take_turns() -> None:
        while not is_over.wait(PAUSE_S):
            turn(url, crowd)

    thread = threading.Thread(target=take_turns)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        for one in crowd:
            one.close()


def measure(plan: Plan) -> Report:
    sampling = SamplingParams(max_tokens=plan.max_tokens, temperature=0, ignore_eos=True)
    speeds: dict[str, list[float]] = {name: [] for name in TURNS}
    with warm_worker(plan.rows, sampling) as queue:
        for _ in range(plan.rounds):
            for name, of_one in speeds.items():
                num = 0 if name == ALONE else plan.subscribers
                with crowd_of(num, queue.url, TURNS[name]):
                    of_one.append(queue.tokens_per_s(plan.num_jobs, sampling))
    alone = median(speeds[ALONE])
    runs = [
        {
            "subscribers": name if name == ALONE else f"{plan.subscribers} {name}",
            "tokens/s": round(median(of_one), 1),
            "share": round(median(of_one) / alone, 3),
            "slowest": round(min(of_one), 1),
            "fastest": round(max(of_one), 1),
        }
        for name, of_one in speeds.items()
    ]
    return {"benchmark": "subscribers", "plan": asdict(plan), "conditions": conditions(), "runs": runs}


def tables(report: Report) -> Iterator[Table]:
    runs = report["runs"]
    yield Table(list(runs[0]), [list(run.values()) for run in runs])


if __name__ == "__main__":
    run_command(lambda: measure(Plan()), tables, __doc__ or "")
