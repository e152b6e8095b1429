"""How far a job of the demo has come, as its reader sees it."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from llama_herd.tasks.events import End, Event, Started, Token

State = Literal["queued", "prefill", "decode", "done", "failed"]


@dataclass(eq=False, slots=True)
class Progress:
    """One job. Times are seconds on the clock of time.monotonic, taken when an event arrives."""

    prompt: str
    seed: int
    job_id: str = ""
    state: State = "queued"
    text: str = ""
    num_tokens: int = 0
    submitted_s: float = 0.0
    token_times_s: list[float] = field(default_factory=list)
    end: End | None = None

    def note(self, event: Event, now_s: float) -> None:
        """Take in the job's next event."""
        match event:
            case Started():
                self.state = "prefill"
            case Token():
                self.state = "decode"
                self.text += event.text
                self.num_tokens += len(event.ids)
                self.token_times_s.append(now_s)
            case End():
                self.state = "done" if event.finish_reason in ("stop", "length") else "failed"
                self.end = event

    @property
    def is_running(self) -> bool:
        return self.state in ("prefill", "decode")

    @property
    def ttft_s(self) -> float | None:
        """Seconds from submission to the first token."""
        return self.token_times_s[0] - self.submitted_s if self.token_times_s else None

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between tokens."""
        return [later - earlier for earlier, later in pairwise(self.token_times_s)]
