"""What an output turns out to be, piece by piece."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """One whole call of a tool."""

    name: str
    arguments: str  # the JSON text of an object, as the model wrote it


@dataclass(frozen=True)
class Delta:
    """What the next piece of an output adds."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()
