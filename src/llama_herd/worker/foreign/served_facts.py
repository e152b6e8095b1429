"""ServedFacts: what a server serves, and whether its tokenizer is the one that is read here."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Self

from llama_herd.errors import SettingsError
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.worker.foreign.backend import Backend, JobRefused, ServerFacts, ServerFault

#: Texts in which tokenizers differ: spaces, digits, marks, capitals, code, other scripts.
TEXTS = (
    "Once upon a time there was a llama.",
    "  two spaces,\n\na tab\tand 1234567890 digits: 3.14",
    "def f(x):\n    return {'a': x**2}  # done",
    "Größe, naïve café, Ça va? 'tis I'LL",
    "日本語のテキスト と 한국어, Привет 🦙",
)


@dataclass(frozen=True)
class ServedFacts:
    """A server's facts, with what its tokenizer is compared to."""

    facts: ServerFacts
    tokenizer: Tokenizer
    model: str  # as HERD_MODEL names it
    is_compared: bool  # else the server tells no ids of texts

    @classmethod
    async def ask(
        cls, backend: Backend, tokenizer: Tokenizer, model: str, wanted: str, *, is_new: bool = True
    ) -> Self:
        """Ask a server that is there. wanted: the model that is meant, if it serves several.

        is_new: no earlier answer of it counts.

        Raises SettingsError if it cuts texts into other ids, and what a backend raises.
        """
        await backend.check_health()
        try:
            facts = await backend.facts(wanted, is_new=is_new)
            ids = [await backend.tokenize(text) for text in TEXTS]
        except JobRefused as error:
            raise ServerFault(f"it answers as no {backend.name} does: {error}") from None
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise ServerFault(f"what it says of itself cannot be read: {error!r}") from None
        if facts.max_length < 1:
            raise SettingsError(f"{backend.name} at HERD_ENGINE_URL does not tell how long its context is")
        return cls(facts, tokenizer, model, _compare(ids, tokenizer, model))

    @property
    def told(self) -> dict[str, object]:
        """What the log says of the server."""
        return {**self.facts._asdict(), "is_tokenizer_compared": self.is_compared}

    async def check_again(self, backend: Backend, *, is_back: bool) -> None:
        """Raise SettingsError unless the server is well and serves the same. is_back: it was away."""
        now = await self.ask(backend, self.tokenizer, self.model, self.facts.model, is_new=is_back)
        if (now.facts.model, now.facts.max_length) != (self.facts.model, self.facts.max_length):
            before, after = (f"{one.model} of {one.max_length} tokens" for one in (self.facts, now.facts))
            raise SettingsError(f"it served {before}, and now {after}. Fix: start this worker again")


def _compare(told: Rows[list[int] | None], tokenizer: Tokenizer, model: str) -> bool:
    """Whether the ids of all texts were told, and so compared; raises SettingsError where they differ."""
    for text, theirs in zip(TEXTS, told, strict=True):
        ours = tokenizer.encode(text, add_bos=False)
        if theirs is None:
            return False
        if theirs != ours:
            raise SettingsError(
                f"HERD_MODEL={model} cuts {text!r} into {len(ours)} ids, {_told(ours)}, but the server at "
                f"HERD_ENGINE_URL into {len(theirs)}, {_told(theirs)}. Fix: name the model that it serves"
            )
    return True


def _told(ids: Rows[int]) -> str:
    shown = ", ".join(map(str, ids[:8]))
    return f"{shown}, ..." if len(ids) > 8 else shown
