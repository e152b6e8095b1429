"""Lists of prompts, echoed prompts and token ids, over HTTP from a worker process."""

from collections.abc import Iterator
from typing import Any

import pytest

from llama_herd.local.redis_server import EmbeddedRedis
from llama_herd.model.files.open_model import open_model
from llama_herd.ops.settings import BUNDLED_MODEL
from tests.local.processes import WorkerProcess
from tests.tasks.gateway.gateway_thread import GatewayThread, events_of

pytestmark = [pytest.mark.redis, pytest.mark.worker, pytest.mark.timeout(180)]

COMPLETIONS = "/v1/completions"
PROMPTS = ["Once upon a time", "A llama sat down. Über 🦙", [1, 403, 3, 407], "The", "Once upon a time"]
TURNS = [{"role": "user", "content": "Tell a tale."}]


@pytest.fixture(scope="module")
def gateway(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayThread]:
    log = tmp_path_factory.mktemp("log") / "worker.log"
    worker = WorkerProcess(
        server.url, BUNDLED_MODEL, "completions", log, deterministic=True, slots=8, tokenizer_info=True
    )
    with worker, GatewayThread(server.url) as gateway:
        yield gateway


def ask(gateway: GatewayThread, path: str = COMPLETIONS, /, **fields: Any) -> Any:
    found = gateway.ask("POST", path, {"model": "tales", **fields})
    assert found.status == 200, found.raw
    return found.json


def complete(gateway: GatewayThread, prompt: Any, **fields: Any) -> list[dict[str, Any]]:
    asked = {"max_tokens": 12, "seed": 5, **fields}
    choices: list[dict[str, Any]] = ask(gateway, prompt=prompt, **asked)["choices"]
    return choices


def streamed(gateway: GatewayThread, prompt: Any, **fields: Any) -> list[dict[str, Any]]:
    """The choices that the chunks of a stream come to."""
    asked = {"model": "tales", "prompt": prompt, "max_tokens": 12, "seed": 5, "stream": True, **fields}
    found: dict[int, dict[str, Any]] = {}
    with gateway.send("POST", COMPLETIONS, asked) as answer:
        *events, last = events_of(answer)
    assert last.data == "[DONE]"
    for event in events:
        (piece,) = event.json["choices"]
        whole = found.setdefault(piece["index"], {"index": piece["index"], "text": "", "logprobs": None})
        whole["text"] += piece["text"]
        whole |= {name: piece.get(name) for name in ("finish_reason", "stop_reason")}
        if piece["logprobs"] is not None:
            before = whole["logprobs"] or {name: [] for name in piece["logprobs"]}
            whole["logprobs"] = {name: before[name] + part for name, part in piece["logprobs"].items()}
    return [found[index] for index in sorted(found)]


@pytest.mark.parametrize(
    "fields", [{}, {"n": 2, "temperature": 0.8}, {"echo": True}, {"echo": True, "logprobs": 2, "n": 2}]
)
def test_a_list_of_prompts_is_each_of_them_alone(gateway: GatewayThread, fields: dict[str, Any]) -> None:
    together = complete(gateway, PROMPTS, **fields)
    alone = [choice for prompt in PROMPTS for choice in complete(gateway, prompt, **fields)]
    assert [one["index"] for one in together] == list(range(len(alone)))
    assert [{**one, "index": 0} for one in together] == [{**one, "index": 0} for one in alone]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"echo": True, "logprobs": 2}, {"logprobs": 1}])
@pytest.mark.parametrize("n", [1, 2])
def test_a_stream_of_several_is_the_whole(gateway: GatewayThread, fields: dict[str, Any], n: int) -> None:
    assert streamed(gateway, PROMPTS, n=n, **fields) == complete(gateway, PROMPTS, n=n, **fields)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("prompt", [*PROMPTS[:4], "a", " leads with a space", "\n"])
@pytest.mark.parametrize("max_tokens", [0, 1, 12])
def test_an_echo_is_the_prompt_before_the_output(
    gateway: GatewayThread, prompt: Any, max_tokens: int
) -> None:
    asked = {"max_tokens": max_tokens, "temperature": 0}
    (found,) = complete(gateway, prompt, echo=True, logprobs=2, **asked)
    text = prompt if isinstance(prompt, str) else ask(gateway, "/detokenize", tokens=prompt)["prompt"]
    output = complete(gateway, prompt, **asked)[0]["text"] if max_tokens else ""
    assert found["text"] == text + output
    scores = found["logprobs"]
    for name, offset in zip(scores["tokens"], scores["text_offset"], strict=True):
        assert found["text"][offset:].startswith(name) or name.startswith("bytes:")  # a part of a character
    assert (scores["token_logprobs"][0], scores["top_logprobs"][0]) == (None, None)
    assert {len(row) for row in scores.values()} == {len(scores["tokens"])}
    rows = zip(scores["tokens"], scores["token_logprobs"], scores["top_logprobs"], strict=True)
    for name, score, top in list(rows)[1:]:
        assert top[name] == score <= 0
        assert len(top) in (2, 3)


def test_scores_without_alternatives_are_those_of_the_tokens(gateway: GatewayThread) -> None:
    (found,) = complete(gateway, "Once upon a time", logprobs=0)
    scores = found["logprobs"]
    rows = zip(scores["tokens"], scores["token_logprobs"], strict=True)
    assert scores["top_logprobs"] == [{name: score} for name, score in rows]


def test_a_prompt_s_scores_are_those_of_the_same_tokens_drawn(gateway: GatewayThread) -> None:
    """What was drawn with a score has it again when it is given."""
    (drawn,) = complete(gateway, "Once upon a time", logprobs=1, temperature=0)
    ids = ask(gateway, "/tokenize", prompt="Once upon a time" + drawn["text"])["tokens"]
    (given,) = complete(gateway, ids, echo=True, logprobs=1, max_tokens=0)
    num = len(drawn["logprobs"]["tokens"])
    assert given["logprobs"]["tokens"][-num:] == drawn["logprobs"]["tokens"]
    assert given["logprobs"]["token_logprobs"][-num:] == pytest.approx(
        drawn["logprobs"]["token_logprobs"], abs=1e-4
    )


def test_the_likeliest_token_s_score_is_the_token_s_own(gateway: GatewayThread) -> None:
    """So lm-evaluation-harness sees whether a continuation is the greedy one."""
    (drawn,) = complete(gateway, "Once upon a time", temperature=0)
    (given,) = complete(gateway, "Once upon a time" + drawn["text"], echo=True, logprobs=1, max_tokens=1)
    scores = given["logprobs"]
    tail = zip(scores["token_logprobs"][-12:], scores["top_logprobs"][-12:], strict=True)
    assert all(own == max(top.values()) for own, top in tail)


@pytest.mark.parametrize("text", ["Once upon a time", "Über 🦙 and\nmore", " x", "</s> ", "a"])
def test_ids_stand_for_the_text_that_they_were_made_of(gateway: GatewayThread, text: str) -> None:
    found = ask(gateway, "/tokenize", prompt=text, return_token_strs=True)
    assert (found["count"], len(found["token_strs"])) == (len(found["tokens"]), len(found["tokens"]))
    assert found["max_model_len"] > 100
    assert ask(gateway, "/detokenize", tokens=found["tokens"]) == {"prompt": text}
    bare = ask(gateway, "/tokenize", prompt=text, add_special_tokens=False)
    assert (bare["tokens"], bare["token_strs"]) == (found["tokens"][1:], None)


@pytest.mark.parametrize(("name", "token_id"), [("<s>", 1), ("</s>", 2)])
def test_a_control_token_s_name_alone_is_its_id_where_nothing_is_computed(
    gateway: GatewayThread, name: str, token_id: int
) -> None:
    """So lm-evaluation-harness finds BOS and EOS. In a text, and in a job with an output, it is a text."""
    bare = ask(gateway, "/tokenize", prompt=name, add_special_tokens=False)
    assert (bare["count"], bare["tokens"]) == (1, [token_id])
    for other in (name + " ", f" {name}", f"a{name}"):
        assert token_id not in ask(gateway, "/tokenize", prompt=other, add_special_tokens=False)["tokens"]
    assert token_id not in ask(gateway, "/tokenize", prompt=name)["tokens"][1:]
    asked = {"prompt": name, "add_special_tokens": False, "echo": True, "max_tokens": 0}
    for computed in ({"max_tokens": 1}, {"prompt_logprobs": 0}, {"logprobs": 1}):
        assert ask(gateway, **asked | computed)["usage"]["prompt_tokens"] > 1
    assert ask(gateway, **asked)["choices"][0]["text"] == name


def test_what_the_files_say_of_the_tokenizer_is_told(gateway: GatewayThread) -> None:
    plain = gateway.ask("GET", "/tokenizer_info")
    named = gateway.ask("GET", "/tokenizer_info?model=tales")
    assert (plain.status, plain.json) == (200, named.json)
    with open_model(BUNDLED_MODEL) as file:
        tokenizer = file.read_tokenizer()
    assert plain.json == {
        "tokenizer_class": "SpmCodec",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        **dict.fromkeys(("sep_token", "pad_token", "cls_token", "mask_token")),
        "add_bos_token": True,
        "add_eos_token": False,
        "model_max_length": 512,
        "chat_template": tokenizer.chat_templates["default"],
    }
    for role in ("bos", "eos"):
        (token_id,) = ask(gateway, "/tokenize", prompt=plain.json[f"{role}_token"], add_special_tokens=False)[
            "tokens"
        ]
        assert token_id in (tokenizer.bos_id, *tokenizer.eos_ids)


def test_a_text_longer_than_the_context_is_counted(gateway: GatewayThread) -> None:
    found = ask(gateway, "/tokenize", prompt="Once upon a time " * 2000)
    assert found["count"] > found["max_model_len"]


def test_the_tokens_of_a_chat_are_those_of_its_prompt(gateway: GatewayThread) -> None:
    found = ask(gateway, "/tokenize", messages=TURNS, add_special_tokens=False)
    chat = ask(gateway, "/v1/chat/completions", messages=TURNS, max_tokens=1)
    assert found["count"] == chat["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": ""}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "temperature": 1}, "temperature"),
        ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        ("/tokenize", {"messages": TURNS, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": TURNS, "add_generation_prompt": False}, "add_generation_prompt"),
        ("/tokenize", {"messages": TURNS, "prompt": "a"}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": []}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens.0"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [9_999_999]}, "tokens"),
        ("/detokenize", {"tokens": [1], "prompt": "a"}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", "a tale " * 4000]}, "prompt.1"),
        (COMPLETIONS, {"prompt": ["a", [9_999_999]]}, "prompt.1"),
        (COMPLETIONS, {"prompt": "a tale " * 4000, "echo": True, "logprobs": 1}, "prompt"),
        ("/v1/chat/completions", {"messages": [{**TURNS[0], "content": "a tale " * 4000}]}, "messages"),
    ],
)
def test_a_wrong_field_has_its_name_in_this_route(
    gateway: GatewayThread, path: str, fields: dict[str, Any], param: str
) -> None:
    found = gateway.ask("POST", path, {"model": "tales", **fields})
    assert (found.status, found.error["param"]) == (400, param), found.raw
    assert "sampling." not in found.error["message"]
    assert "prompt_ids" not in found.error["message"]
