"""Checked access to what a model says about itself, be it GGUF metadata or a Hugging Face JSON file."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from llama_herd.counted import counted
from llama_herd.errors import ModelFileError
from llama_herd.model.reading.bounded_reader import Array

# The most that a file may say of a model: far above any that people have, far below what does harm.
MAX_VOCAB = 1 << 20
MAX_HIDDEN = 65_536
MAX_LAYERS = 512
MAX_HEADS = 1_024
MAX_HEAD_DIM = 1_024
MAX_FFN = 1 << 20
MAX_CONTEXT = 1 << 22
MAX_ROPE_BASE = 1e12
MAX_SCALE = 1e6
MAX_EXPERTS = 65_536

#: An error quotes no more than this of what a file holds, and of one value of it.
MAX_PROBLEM_CHARS, MAX_QUOTED_CHARS = 200, 60

#: What helps when a file says what cannot be.
HELP = "Fetch the file again, or take another one of the same model."

#: What helps when a file says what we do not compute.
OTHER_MODEL = "Take another model."

#: What helps when a folder's weights are of a type that cannot be read.
UNQUANTISED = (
    "Take the folder of the same model that is not quantised, or a GGUF file of it, such as its Q8_0."
)

T = TypeVar("T")


class Metadata(Mapping[str, object]):
    """Keys and values of `source`, the file that errors name.

    Each reader returns a value of its one type, or `default` when the key is absent. It raises
    ModelFileError when there is no default, and when the value is null, of another type or out of range.
    """

    def __init__(self, values: Mapping[str, object], source: str = "metadata") -> None:
        self._values = values
        self.source = source

    def __getitem__(self, key: str) -> object:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def integer(self, key: str, lowest: int, highest: int, default: int | None = None) -> int:
        """An integer from `lowest` to `highest`."""
        value = self._read(key, (int,), "an integer", default)
        if not lowest <= value <= highest:
            raise self.error(key, f"is {quoted(value)}, allowed are {lowest} to {highest}")
        return value

    def number(self, key: str, above: float, below: float, default: float | None = None) -> float:
        """A number above `above` and below `below`."""
        value = self._read(key, (int, float), "a number", default)
        if not above < value < below:
            raise self.error(key, f"is {quoted(value)}, it must be above {above:g} and below {below:g}")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        return self._read(key, (str,), "a string", default)

    def flag(self, key: str, default: bool | None = None) -> bool:
        """A boolean."""
        return self._read(key, (bool,), "a boolean", default)

    def strings(self, key: str) -> tuple[str, ...]:
        """An array of strings."""
        return self._read(key, (tuple,), "an array of strings")

    def array(self, key: str, kind: str, length: int) -> Array:
        """A numeric array of `length` numbers, of a `kind` of numpy's ("iu" for integers, "f" for floats)."""
        values = self._read(key, (np.ndarray,), "an array of numbers")
        if values.dtype.kind not in kind:
            raise self.error(key, f"holds {values.dtype} values, the kind {kind!r} is needed")
        if len(values) != length:
            raise self.error(key, f"has {counted(len(values), 'element')}, needed: {length:,}")
        return values

    def nested(self, key: str, default: dict[str, object] | None = None) -> "Metadata":
        """A JSON object within this one."""
        return Metadata(self._read(key, (dict,), "an object", default), f"{self.source}: {key}")

    def without_nulls(self, keys: Collection[str] | None = None) -> "Metadata":
        """Metadata without keys whose value is null, of these keys or of all: null then means absent."""
        nulls = {key for key, value in self.items() if value is None and (keys is None or key in keys)}
        return Metadata({key: self[key] for key in self if key not in nulls}, self.source)

    def require(self, key: str, needed: str) -> None:
        """Raise ModelFileError when the key is there with another text."""
        value = self.text(key, needed)
        if value != needed:
            raise self.error(key, f"is {quoted(value)}, only {quoted(needed)} is supported", OTHER_MODEL)

    def numbers(self, keys: Mapping[str, str]) -> dict[str, float]:
        """The numbers above 0 under the values of `keys`, by their names there, as far as they are stated."""
        return {name: self.number(key, 0, MAX_SCALE) for name, key in keys.items() if key in self}

    def items_of(self, key: str, allowed: Sequence[str], length: int) -> list[str]:
        """A JSON list of `length` strings, each one of those allowed."""
        items = self._read(key, (list,), "a list")
        if len(items) != length:
            raise self.error(key, f"has {counted(len(items), 'element')}, needed: {length:,}")
        for item in items:
            if item not in allowed:
                raise self.error(key, f"holds {quoted(item)}, supported are {', '.join(allowed)}")
        return items

    def error(self, key: str, problem: str, help: str = HELP) -> ModelFileError:
        """An error that names the file, the key, what is wrong with it, and what helps."""
        if len(problem) > MAX_PROBLEM_CHARS:
            problem = problem[:MAX_PROBLEM_CHARS] + "..."
        return ModelFileError(f"{self.source}: {key} {problem}. {help}")

    def _read(self, key: str, kinds: tuple[type[T], ...], needed: str, default: T | None = None) -> T:
        value = self._values.get(key, default)
        if value is None:
            raise self.error(key, f"is null, {needed} is needed" if key in self else "is missing")
        is_stray_bool = isinstance(value, bool) and bool not in kinds  # a bool is an int to isinstance
        if not isinstance(value, kinds) or is_stray_bool:
            raise self.error(key, f"is of type {type(value).__name__}, {needed} is needed")
        return value


class NotedMetadata(Metadata):
    """Metadata that notes which keys were read, so that what nobody knows can be refused."""

    def __init__(self, values: Mapping[str, object], source: str) -> None:
        super().__init__(values, source)
        self.noted: set[str] = set()

    def _read(self, key: str, kinds: tuple[type[T], ...], needed: str, default: T | None = None) -> T:
        self.noted.add(key)
        return super()._read(key, kinds, needed, default)


def quoted(value: object) -> str:
    """`value` as Python would write it, cut to 60 characters."""
    shown = repr(value)
    return shown if len(shown) <= MAX_QUOTED_CHARS else f"{shown[:MAX_QUOTED_CHARS]}..."
