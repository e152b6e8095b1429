"""Delta: the reasoning, content and calls of tools that are found in a piece of an output."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """One whole call of a tool."""

    name: str
    arguments: str  # the JSON text of an object, as the model wrote it


@dataclass(frozen=True)
class Delta:
    """The reasoning, content and calls that the next piece of an output brings."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()
