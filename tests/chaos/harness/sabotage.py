"""The sabotage that a worker of the herd commits against itself."""

from typing import Literal, get_args

from pydantic_settings import BaseSettings, SettingsConfigDict

from llama_herd.worker.jobs.lost_messages import SILENT_S

PREFIX = "SABOTAGE_"

Moment = Literal["", "prefill", "before_result", "before_ack", "popped"]

#: A job whose id begins like this kills each worker: while it is prepared, before its first forward, or after
#: each recorded token event.
Poison = Literal["poison-prepare", "poison-forward", "poison-token"]

POISONS: tuple[Poison, ...] = get_args(Poison)


class Sabotage(BaseSettings):
    """Travels as `SABOTAGE_*` variables from the herd to its workers, where `saboteur` acts on it.

    dies: the moment at which the worker kills itself, as if its machine was lost; empty: never.
    step_s: each step of the engine takes this much longer, so that faults hit running jobs.
    silent_s: after how long it takes messages for lost that nobody notes as held.
    clock_s: how far the worker's clock is ahead of the others.
    stand_in: replace the model by something cheap, so that many rows run on a small machine.
    held_by: a folder by which `tests.worker.standstill` holds up its steps; empty: nothing does.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    dies: Moment = ""
    step_s: float = 0.0
    silent_s: float = SILENT_S
    clock_s: float = 0.0
    stand_in: bool = False
    held_by: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables from which a worker reads it."""
        return {PREFIX + name.upper(): str(value) for name, value in self.model_dump().items()}
