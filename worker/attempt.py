"""One try at running a job: the claim, the sequence in the engine, the stream, the messages to settle."""

from dataclasses import dataclass, field
from time import monotonic

from llama_herd.tasks.events import Timings
from llama_herd.tasks.job import seed_of
from llama_herd.worker.delivery import Delivery
from llama_herd.worker.sequence import Sequence
from llama_herd.worker.stream import Stream


@dataclass(eq=False, slots=True)
class Attempt:
    """What this worker knows of a job that it has claimed."""

    stream: Stream
    deliveries: list[Delivery]
    sequence: Sequence | None = None  # None: the job can't be run, only ended
    is_last: bool = False  # if this attempt brings no token, the job is given up
    waited_s: float = 0.0  # from submit to claim, by Redis's clock
    claimed_s: float = field(default_factory=monotonic)
    started_s: float | None = None
    first_token_s: float | None = None

    @property
    def job_id(self) -> str:
        return self.stream.job_id

    @property
    def seed(self) -> int:
        return self.sequence.seed if self.sequence else seed_of(self.job_id)

    @property
    def num_prompt_tokens(self) -> int | None:
        return len(self.sequence.prompt_ids) if self.sequence else None

    def start(self) -> None:
        """The engine has admitted the sequence."""
        self.started_s = monotonic()
        for delivery in self.deliveries:
            delivery.accept()

    def note_token(self) -> None:
        self.first_token_s = self.first_token_s or monotonic()

    @property
    def timings(self) -> Timings:
        """Seconds since the job was submitted, as far as this attempt has seen them."""
        return Timings(
            queue_s=self._since_submit(self.started_s),
            ttft_s=self._since_submit(self.first_token_s),
            total_s=self._since_submit(monotonic()),
        )

    def _since_submit(self, moment_s: float | None) -> float | None:
        return None if moment_s is None else round(self.waited_s + moment_s - self.claimed_s, 6)
