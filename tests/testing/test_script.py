"""A script says which job is answered what; what it does not say fails in words that quote no prompt."""

import socket
from pathlib import Path

import pytest

from llama_herd.error_code import ErrorCode
from llama_herd.errors import BadInput, GenerationError
from llama_herd.tasks.protocol.job import GenerationJob
from llama_herd.testing import Answer, AskedJob, Call, Script
from llama_herd.testing.script_server import ScriptServer


def asked(prompt: str, job_id: str = "job", model: str = "tales") -> AskedJob:
    return AskedJob(job_id, "default", model, GenerationJob(prompt=prompt, model=model))


def said(script: Script, prompt: str, job_id: str = "job", model: str = "tales") -> str | None:
    return script.reply_to(asked(prompt, job_id, model)).text


def test_the_last_rule_that_fits_counts() -> None:
    script = Script()
    script.answer("any")
    script.answer("Paris", to="capital of (France|Gaul)")
    script.answer("of qwen", model="qwen")
    script.answer("long", to=lambda one: len(one.text) > 100)
    assert said(script, "the capital of Gaul?") == "Paris"
    assert said(script, "the capital of France?", model="qwen") == "of qwen"
    assert said(script, "x" * 101) == "long"
    assert said(script, "who?") == "any"


def test_jobs_get_replies_in_turn_and_each_attempt_the_same() -> None:
    script = Script()
    script.answer("first", lambda one: f"to {one.id}", Answer.of({"a": 1}))
    texts = [said(script, "x", job_id) for job_id in ("a", "b", "c", "d", "a", "b")]
    assert texts == ["first", "to b", '{"a": 1}', '{"a": 1}', "first", "to b"]
    assert [one.id for one in script.jobs] == ["a", "b", "c", "d"]


def test_of_jobs_that_are_not_kept_only_those_with_a_turn_are_known() -> None:
    script = Script()
    script.answer("first", "second", "then")
    texts = [script.answer_for(asked("x", str(number))).text for number in range(100)]
    assert texts == ["first", "second", *["then"] * 98]
    assert script.answer_for(asked("x", "1")).text == "second"
    assert not script.jobs
    assert len(script._rules[0].turns) == 2


def test_of_a_chat_the_last_message_counts() -> None:
    script = Script()
    script.answer("yes", to="^and now$")
    chat = [{"role": "user", "content": "before"}, {"role": "user", "content": "and now"}]
    job = GenerationJob.model_validate({"messages": chat})
    assert script.reply_to(AskedJob("job", "default", "tales", job)).text == "yes"


def test_a_job_without_an_answer_fails_by_its_id_alone() -> None:
    script = Script()
    script.answer("x", to="other")
    with pytest.raises(GenerationError) as caught:
        said(script, "my secret", "job-7")
    assert (caught.value.code, caught.value.retriable) == (ErrorCode.PREPARATION_ERROR, False)
    assert "no answer for job job-7" in caught.value.message
    assert "secret" not in str(caught.value)
    assert [one.text for one in script.unanswered] == ["my secret"]


def test_what_a_function_raises_is_kept() -> None:
    script = Script()
    script.answer(lambda one: {"secret": "x"}[one.text])
    with pytest.raises(GenerationError, match="the script's function for job job raised KeyError"):
        said(script, "my prompt")
    assert [str(one) for one in script.problems] == ["'my prompt'"]


def test_an_unknown_code_is_told_with_those_that_there_are() -> None:
    with pytest.raises(BadInput) as caught:
        Answer.failing("out_of_mana")
    assert "'out_of_mana'" in str(caught.value)
    assert all(code in str(caught.value) for code in ErrorCode)


@pytest.mark.parametrize("field", ["tokens_per_s", "after_tokens", "dies_after"])
def test_numbers_below_0_are_refused(field: str) -> None:
    with pytest.raises(BadInput, match=f"{field}: must be 0 or more, got -1"):
        Answer.of("x", **{field: -1})


def test_an_answer_travels_whole() -> None:
    answer = Answer.of("x", reasoning="so", calls=(Call("a", {"b": 1}),), tokens_per_s=2, dies_after=3)
    assert Answer.from_dict(answer.to_dict()) == answer


def test_a_script_may_be_a_table(tmp_path: Path) -> None:
    path = tmp_path / "script.toml"
    path.write_text(
        '[[answers]]\ntext = "no"\n'
        '[[answers]]\nto = "France"\ntext = "Paris"\ntokens_per_s = 5\n'
        '[[answers]]\nto = "fail"\nerror = "model_error"\nafter_tokens = 2\ntext = "a b c"\n'
        '[[answers]]\nto = "weather"\ncalls = [{name = "weather", arguments = {city = "Paris"}}]\n'
    )
    script = Script.load(path)
    assert [said(script, prompt) for prompt in ("?", "of France?")] == ["no", "Paris"]
    failure = script.reply_to(asked("fail"))
    assert failure == Answer.failing("model_error", text="a b c", after_tokens=2)
    assert script.reply_to(asked("weather")).calls == (Call("weather", {"city": "Paris"}),)


def test_a_script_may_be_python(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(
        "from llama_herd.testing import Script\nscript = Script()\nscript.answer(lambda one: one.text * 2)\n"
    )
    assert said(Script.load(path), "ab") == "abab"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.toml", "", "has no answers"),
        ("a.toml", "[[answers", "cannot be read"),
        ("a.toml", '[[answers]]\nerror = "none"', "answer 1: error: no code is 'none'"),
        ("a.toml", '[[answers]]\ntxt = "x"', "answer 1: .*txt"),
        ("a.toml", '[[answers]]\nto = "("', "answer 1: to='\\(' is no regular expression"),
        ("a.py", "x = 1", "sets no `script`"),
    ],
)
def test_a_wrong_file_is_told_in_words(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(BadInput, match=words):
        Script.load(tmp_path / name)
    with pytest.raises(BadInput, match="cannot be read"):
        Script.load(tmp_path / f"no-{name}")


@pytest.mark.parametrize("said", [b"", b'{"id": "half'])
def test_a_worker_that_dies_while_it_asks_is_no_error(
    tmp_path: Path, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[object] = []
    monkeypatch.setattr(ScriptServer, "handle_error", lambda *about: failed.append(about))
    with ScriptServer(Script(), tmp_path / "script"), socket.socket(socket.AF_UNIX) as link:
        link.connect(str(tmp_path / "script"))
        link.sendall(said)
        link.shutdown(socket.SHUT_WR)
        assert link.recv(1) == b"", "nothing is answered"
    assert not failed
