"""The jobs of the demo: their prompts, and how far each has come, as its reader sees it."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from llama_herd.tasks.protocol.events import End, Event, Started, Token
from llama_herd.tasks.protocol.job_fields import SamplingFields

DemoJobState = Literal["queued", "prefill", "decode", "done", "failed"]


#: Eight openings of tales like those that the bundled model was trained on.
PROMPTS = (
    "Once upon a time, a curious fox named Mia lived by the river. One sunny morning, Mia lost her red kite.",
    "Long ago, a kind baker named Otto lived in a small village. One evening, a great storm came, and Rosa "
    "the hedgehog knocked at the door.",
    "Once, a shy owl named Theo lived under an old oak. Theo was afraid of the dark, but he told nobody.",
    "Once upon a time, a young gardener named Clara lived on a green hill. One warm day, Clara found a seed "
    "and planted it behind the house.",
    "Long ago, a quiet mouse named Pip lived behind the mill. One windy night, Pip heard a strange sound: "
    "tap tap tap.",
    "Once, a lively otter named Finn lived beside the lake. Finn had never seen the sea, so one bright "
    "morning he set out on foot.",
    "Once upon a time, a cheerful goose named Greta lived close to the lighthouse. One clear night, Greta "
    "saw a falling star and wished for a true friend.",
    "Long ago, an old bear named Karl lived at the edge of the forest. One cold evening, Karl made onion "
    "soup for supper.",
)

#: The same seeds each time, so that the demo tells the same tales wherever it runs.
SAMPLING: SamplingFields = {"max_tokens": 160, "temperature": 0.7, "top_p": 0.95}


@dataclass(eq=False, slots=True)
class DemoJob:
    """One job. Times are seconds on the clock of time.monotonic, taken when an event arrives."""

    prompt: str
    seed: int
    job_id: str = ""
    state: DemoJobState = "queued"
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


def new_jobs() -> list[DemoJob]:
    """A job for each prompt."""
    return [DemoJob(prompt, seed=number) for number, prompt in enumerate(PROMPTS, start=1)]
