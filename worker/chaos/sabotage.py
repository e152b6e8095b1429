"""What a worker of the herd is told to do to itself."""

from typing import Literal, get_args

from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "SABOTAGE_"

#: kombu's backstop takes a message that is held longer than this for lost.
VISIBILITY_S = 30

Moment = Literal["", "prefill", "before_result", "before_ack", "popped"]

#: A job whose id begins so kills each worker that prepares it, before its first forward, or after each of its
#: token events that is on record.
Poison = Literal["poison-prepare", "poison-forward", "poison-token"]

POISONS: tuple[Poison, ...] = get_args(Poison)


class Sabotage(BaseSettings):
    """Travels as `SABOTAGE_*` variables from the herd to its workers, where `saboteur` acts on it.

    dies: the moment at which the worker kills itself, as a lost machine would; empty: never.
    step_s: each step of the engine takes so much longer, so that faults meet running jobs.
    visibility_s: kombu's visibility timeout. clock_s: how far the worker's clock is ahead of all others.
    stand_in: something cheap takes the place of the model, so that many rows run on a small machine.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    dies: Moment = ""
    step_s: float = 0.0
    visibility_s: int = VISIBILITY_S
    clock_s: float = 0.0
    stand_in: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a worker reads it from."""
        return {PREFIX + name.upper(): str(value) for name, value in self.model_dump().items()}
