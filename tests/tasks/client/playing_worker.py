"""A thread that plays the worker: it emits a job's events when the test says so."""

import threading

from llama_herd.tasks.ledger.held_jobs import EmitEntry
from tests.chaos.harness.patience import PATIENCE_S
from tests.tasks.herd import Herd, end, started, token

NUM_TOKENS = 40


class PlayingWorker(threading.Thread):
    """Claims a job and emits it event by event; `pause_at` lets it wait before that event until told."""

    def __init__(self, herd: Herd, job_id: str, pause_at: int = 0) -> None:
        super().__init__(daemon=True)
        self.herd = herd
        self.job_id = job_id
        self.pause_at = pause_at
        self.has_paused = threading.Event()
        self.may_go_on = threading.Event()

    def run(self) -> None:
        self.herd.claim(self.job_id, "one")
        for seq in range(1, NUM_TOKENS + 3):
            if seq == self.pause_at:
                self.has_paused.set()
                assert self.may_go_on.wait(PATIENCE_S)
            self.herd.emit("one", self.entry(seq))

    def entry(self, seq: int) -> EmitEntry:
        if seq == 1:
            return started(self.job_id)
        if seq == NUM_TOKENS + 2:
            return end(self.job_id, seq, NUM_TOKENS)
        return token(self.job_id, seq, seq - 2)
