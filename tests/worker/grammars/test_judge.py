"""The judge of forms is a process of its own: its time, its memory and its death are no one else's."""

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psutil
import pytest

from llama_herd.error_code import ErrorCode
from llama_herd.errors import GenerationError, InvalidJob
from llama_herd.model.files.gguf_model import GGUFModel
from llama_herd.model.text.helper import Helper, HelperLimits
from llama_herd.model.text.tokenizer import Tokenizer
from llama_herd.ops.settings import BUNDLED_MODEL
from llama_herd.tasks.protocol.structured_outputs import OutputForm
from llama_herd.worker.grammars.grammars import JUDGE, JUDGE_LIMITS, Grammars
from llama_herd.worker.grammars.judge import judge_form
from tests.chaos.harness.patience import wait_until
from tests.model.text.helper_processes import helpers
from tests.worker.grammars.test_grammars import FORMS
from tests.worker.grammars.test_narrowed_schema import ADDRESSES


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    with GGUFModel.open(BUNDLED_MODEL) as file:
        return file.read_tokenizer()


@pytest.mark.parametrize("others", [True, False])
def test_an_object_may_have_a_thousand_names_that_may_be_left_out(others: bool) -> None:
    names = {f"name{number}": {"type": "string"} for number in range(1_000)}
    schema = {"type": "object", "properties": names, "additionalProperties": others}
    assert judge_form("json", json.dumps(schema)).kind == "text"


@pytest.mark.long
def test_hundreds_of_addresses_may_each_have_a_pattern(tokenizer: Tokenizer) -> None:
    address = {"type": "string", "format": "email", "pattern": ADDRESSES[0]}
    schema = {"type": "object", "properties": {f"address{number}": address for number in range(400)}}
    with closing(Grammars(tokenizer, 1, [Helper(JUDGE, JUDGE_LIMITS)])) as grammars:
        assert grammars.constraints(OutputForm("json", json.dumps(schema), "f"), 1)


@pytest.mark.long
@pytest.mark.parametrize(
    "limits", [HelperLimits(0.05, 10.0, 256 << 20), HelperLimits(5.0, 10.0, 4 << 20)], ids=["time", "memory"]
)
def test_a_form_that_takes_too_much_ends_alone(tokenizer: Tokenizer, limits: HelperLimits) -> None:
    bounded = Grammars(tokenizer, 1, [Helper(JUDGE, limits)])
    large = OutputForm("choice", json.dumps([f"choice {number}" for number in range(16_000)]), "f")
    try:
        with pytest.raises(GenerationError) as caught:
            bounded.constraints(large, 1)
        assert caught.value.code == ErrorCode.GRAMMAR_TOO_COMPLEX
        assert bounded.constraints(FORMS["regex"], 1), "the next one has another helper"
    finally:
        bounded.close()


@contextmanager
def standing_judge(grammars: Grammars) -> Iterator[psutil.Process]:
    """The helper of these, stopped within the block."""
    before = set(helpers(JUDGE))
    with closing(grammars):
        grammars.constraints(FORMS["choice"], 1)
        (helper,) = set(helpers(JUDGE)) - before
        helper.send_signal(signal.SIGSTOP)
        yield helper


@pytest.mark.long
def test_a_form_that_takes_its_time_holds_up_nobody_else(tokenizer: Tokenizer) -> None:
    """As if its helper stood still: the other thread has its own."""
    shared = Grammars(tokenizer, 1, [Helper(JUDGE, JUDGE_LIMITS), Helper(JUDGE, JUDGE_LIMITS)])
    with standing_judge(shared) as standing, ThreadPoolExecutor() as threads:
        slow = threads.submit(shared.constraints, FORMS["record"], 1)
        wait_until(lambda: len(shared._judges._idle) == 1, "the form is judged")
        assert shared.constraints(FORMS["regex"], 1)
        assert not slow.done()
        standing.send_signal(signal.SIGCONT)
        assert slow.result()


@pytest.mark.long
def test_what_was_refused_is_not_judged_again(tokenizer: Tokenizer) -> None:
    refused = Grammars(tokenizer, 1, [Helper(JUDGE, JUDGE_LIMITS)])
    wrong = OutputForm("regex", "(", "f")
    with standing_judge(refused) as standing:
        standing.send_signal(signal.SIGCONT)
        with pytest.raises(InvalidJob):
            refused.constraints(wrong, 1)
        standing.send_signal(signal.SIGSTOP)
        with pytest.raises(InvalidJob):
            refused.constraints(wrong, 1)


@pytest.mark.long
def test_what_came_too_late_is_judged_again(tokenizer: Tokenizer) -> None:
    """The machine may have been busy."""
    judged = Grammars(tokenizer, 1, [Helper(JUDGE, HelperLimits(1.0, 0.5, 256 << 20))])
    with standing_judge(judged):
        with pytest.raises(GenerationError, match="takes longer") as caught:
            judged.constraints(FORMS["record"], 1)
        assert (caught.value.code, caught.value.retriable) == ("preparation_error", True)
        assert judged.constraints(FORMS["record"], 1)


@pytest.mark.long
def test_a_crash_of_the_judge_refuses_the_form_and_nothing_else(tokenizer: Tokenizer) -> None:
    crashed = Grammars(tokenizer, 1, [Helper(JUDGE, JUDGE_LIMITS)])
    with standing_judge(crashed) as helper, ThreadPoolExecutor() as threads:
        asked = threads.submit(crashed.constraints, FORMS["record"], 1)
        wait_until(lambda: not crashed._judges._idle, "the form is judged")
        helper.send_signal(signal.SIGSEGV)
        helper.send_signal(signal.SIGCONT)
        with pytest.raises(GenerationError, match="f: the schema or grammar ended its process with code -11"):
            asked.result()
        assert crashed.constraints(FORMS["tree"], 1), "the next form has another judge"
