"""What a ledger takes from the settings."""

from dataclasses import fields

from llama_herd.tasks.ledger.ledger import Ledger
from llama_herd.tasks.settings import Settings


def test_a_setting_that_is_called_as_a_field_of_the_ledger_becomes_that() -> None:
    shared = [one.name for one in fields(Ledger) if hasattr(Settings(), one.name)]
    numbers = {
        name: 1000 + place for place, name in enumerate(shared) if type(getattr(Settings(), name)) is int
    }
    settings = Settings().model_copy(update={**numbers, "tenant": "acme"})
    ledger = Ledger.from_settings(settings, "w")
    assert len(numbers) >= 8
    assert [getattr(ledger, name) for name in shared] == [getattr(settings, name) for name in shared]
    assert ledger.worker == "w"
