"""How a model is meant to be used, and what a command takes of it where nobody says otherwise."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from llama_herd.cli.terminal import say

if TYPE_CHECKING:
    from llama_herd.tasks.client.client import Client
    from llama_herd.worker.loading.sequence_maker import SequenceMaker


class ModelHabits(NamedTuple):
    """chats: whether it has a chat template. sampling: what its files recommend, by the fields of a job."""

    name: str
    chats: bool
    sampling: Mapping[str, Any]

    @classmethod
    def told_by(cls, client: "Client", model: str) -> "ModelHabits | None":
        """Those that a worker of this model reports; None if none is up, or if this user may not ask."""
        from llama_herd.errors import NotPermitted

        try:
            workers = client.workers()
        except NotPermitted:
            return None
        own = next((one for one in workers if one.model == model), None)
        return None if own is None else cls(model, own.chats == "yes", own.own_sampling)

    @classmethod
    def of_maker(cls, maker: "SequenceMaker", model: str) -> "ModelHabits":
        """Those of a model that is loaded here."""
        return cls(model, maker.chat is not None, maker.sampling)

    def suit(self, fields: Mapping[str, Any], *, may_chat: bool) -> dict[str, Any]:
        """A job's fields as this model is meant to be asked, and a line that says what was taken.

        may_chat: a prompt may become a message.
        """
        taken = dict(fields)
        is_chat = may_chat and self.chats and "prompt" in taken
        if is_chat:
            taken["messages"] = [{"role": "user", "content": taken.pop("prompt")}]
        given = fields.get("sampling", {})
        own = {name: value for name, value in self.sampling.items() if name not in given}
        taken["sampling"] = own | given
        told = ["as a chat (--text: as a text to go on with)"] if is_chat else []
        told += ["its own " + ", ".join(f"{name} {value:g}" for name, value in own.items())] if own else []
        if told:
            say(f"{self.name}: {'; '.join(told)}")
        return taken
