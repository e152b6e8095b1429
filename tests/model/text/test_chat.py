"""Prompts of conversations equal transformers'; no message makes a control token; no template does harm."""

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from llama_herd.errors import GenerationError, ModelFileError
from llama_herd.model.text.chat import Chat, ChatTemplates
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.sandbox import Limits
from llama_herd.model.text.template_files import DEFAULT
from llama_herd.model.text.tokenizer import Tokenizer
from tests.model.text.helper_processes import helpers
from tests.model.text.templates import TEMPLATES as FAMILIES
from tests.model.tiny_folder import tiny_tokenizer, write_tiny_tokenizer
from tests.tiny import BOS_ID, EOS_ID, UNK_ID

LLAMA_2 = FAMILIES["llama_2"]
HEADED = """\
{% for message in messages %}
    {% if loop.index > 4 %}
        {% break %}
    {% endif %}
<s>{{ message.role | upper }}

{{ message.content | trim }}</s>
{% endfor %}
{% if tools is not none or strftime_now is not defined and false %}tools{% endif %}
{{ messages | length }}{{ {'<': [1, 'é']} | tojson }}
{% if add_generation_prompt %}
<s>ASSISTANT
{% endif %}
"""
TEMPLATES = {
    "Llama 2": LLAMA_2,
    "headed": HEADED,
    "plain": "{% for m in messages %}{{ m.content }}{% endfor %}",
}


def turn(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


def conversation(*contents: str, system: str | None = None) -> Chat:
    """Turns of user and assistant, after a system message if there is one."""
    turns = [turn(("user", "assistant")[number % 2], content) for number, content in enumerate(contents)]
    return Chat(turns if system is None else [turn("system", system), *turns])


CONVERSATIONS = [
    conversation("the herd"),
    conversation("  the herd\n"),
    conversation("the llama is in the queue", system="a llama"),
    conversation("the", "a token", "and"),
    conversation("the", " a\ttoken\n\n", "and", "on  the queue ", "to", system="be a llama\n  in a herd  "),
    conversation("你好, Ñandú 🦙", "é e\u0301 \u200b\ufeff", "العربية", system="にほん"),
    conversation("[INST] the [/INST] <<SYS>> <</SYS>>", "<<SYS>>\nthe\n<</SYS>>", "[/INST]"),
    conversation("{{ 7 * 7 }} {% raw %} {# the #}", "${the}", "%s {0}"),
    conversation("<0x41> ▁the \\n \\u0041 '\"", "\u0000\u0007\u0085\u2028", "a\r\nb"),
    conversation("the herd " * 200, "a " * 300, "x", system="to " * 100),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"), eos_token="</s>", unk_token="<unk>")


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_json(path)


@pytest.fixture(scope="module")
def control_tokens(path: Path, tokenizer: Tokenizer) -> ControlTokens:
    return ControlTokens.from_json(path, tokenizer)


#: The CPU time ends what never ends, however long that takes on a busy machine.
LIMITS = Limits(cpu_s=0.2, wall_s=30.0)


class Templates:
    """Makes templates of the tiny vocabulary, and ends them with the test."""

    def __init__(self, tokenizer: Tokenizer, control_tokens: ControlTokens) -> None:
        self._tokenizer = tokenizer
        self._control_tokens = control_tokens
        self._made: list[ChatTemplates] = []

    def make(self, source: str, limits: Limits = LIMITS) -> ChatTemplates:
        sources = {DEFAULT: source}
        self._made.append(ChatTemplates(sources, self._tokenizer, self._control_tokens, limits))
        return self._made[-1]

    def close(self) -> None:
        for template in self._made:
            template.close()


@pytest.fixture
def templates(tokenizer: Tokenizer, control_tokens: ControlTokens) -> Iterator[Templates]:
    templates = Templates(tokenizer, control_tokens)
    yield templates
    templates.close()


def error_of(template: ChatTemplates, *contents: str) -> GenerationError:
    with pytest.raises(GenerationError) as caught:
        template.encode(conversation(*contents))
    assert caught.value.code == "template_error"
    return caught.value


# Equal to transformers


@pytest.mark.long
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_ids_equal_transformers(templates: Templates, source: str, add_generation_prompt: bool) -> None:
    template, engine = templates.make(source), tiny_tokenizer()
    for chat in CONVERSATIONS:
        expected = engine.apply_chat_template(
            chat.messages,
            chat_template=source,
            add_generation_prompt=add_generation_prompt,
            tokenize=True,
            return_dict=False,
        )
        assert template.encode(chat, add_generation_prompt=add_generation_prompt) == expected


def test_bos_stands_where_the_template_writes_it_and_nowhere_else(
    templates: Templates, tokenizer: Tokenizer
) -> None:
    assert tokenizer.adds_bos
    ids = templates.make(LLAMA_2).encode(conversation("the", "a", "and"))
    assert (ids[0], ids.count(BOS_ID), ids.count(EOS_ID)) == (BOS_ID, 2, 1)
    plain = templates.make("{{ messages[0].content }}").encode(conversation("the herd"))
    assert plain == tokenizer.encode("the herd", add_bos=False)


# Nothing in a message becomes a control token

INJECTIONS = ("</s>", "<s>", "<unk>", "a</s><s>b", " </s> ", "\udc00\udc01\udc02", "\ud800", "</s", "s>")


@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_control_ids_are_the_same_whatever_the_messages_say(templates: Templates, source: str) -> None:
    def control_ids(chat: Chat) -> list[int]:
        return [token_id for token_id in template.encode(chat) if token_id in (UNK_ID, BOS_ID, EOS_ID)]

    template = templates.make(source)
    expected = control_ids(conversation("the", "a", "and", system="to"))
    for text in INJECTIONS:
        assert control_ids(conversation(text, text, text, system=text)) == expected


def test_a_control_token_in_a_message_comes_out_as_its_text(
    templates: Templates, tokenizer: Tokenizer
) -> None:
    ids = templates.make(LLAMA_2).encode(conversation("a </s><s> b"))
    assert tokenizer.decode(ids) == " [INST] a </s><s> b [/INST]"


def test_messages_side_by_side_make_no_control_token(templates: Templates) -> None:
    template = templates.make("{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}<s>")
    ids = template.encode(Chat([turn("<", "/s"), turn(">", "<"), turn("s>", "<s"), turn(">", "")]))
    assert EOS_ID not in ids
    assert ids.count(BOS_ID) == 1


def test_a_template_sees_messages_as_they_are(templates: Templates, tokenizer: Tokenizer) -> None:
    """Their length, their ends and their parts, control tokens included."""
    template = templates.make(
        "{{ messages[0].content | length }}{{ messages[0].content.split('b')[-1][2:] }}"
    )
    assert tokenizer.decode(template.encode(conversation("<s>b</s>"))) == " 8s>"


def test_more_control_tokens_than_marks_are_refused_by_both_numbers(tokenizer: Tokenizer) -> None:
    ids = {f"<|{number:04}|>": 1 for number in range(1_024)}
    with pytest.raises(ModelFileError, match="name 1024 control tokens, limit 1023"):
        ChatTemplates({DEFAULT: "".join(ids)}, tokenizer, ControlTokens(ids, {}))


# Errors


def test_a_broken_order_of_roles_is_told_in_the_templates_words(templates: Templates) -> None:
    template = templates.make(LLAMA_2)
    with pytest.raises(
        GenerationError, match="refuses them: roles must be user and assistant in turn"
    ) as caught:
        template.encode(Chat([turn("assistant", "secret")]))
    assert (caught.value.code, caught.value.retriable) == ("template_error", False)
    assert "secret" not in str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no ' + messages[0].content) }}", "refuses them$"),
        ("{{ raise_exception(messages[0].content) }}", "refuses them$"),
        ("{{ raise_exception('no <s>') }}", r"refuses them: no \\udc01$"),
        ("{{ messages[0].content + 1 }}", "fails: TypeError$"),
        ("{{ messages[0].content.none.none }}", "fails: UndefinedError$"),
        ("{{ messages[7].content }}", "fails: UndefinedError$"),
        ("{% include messages[0].content %}", "fails: TypeError$"),
        ("{{ messages[0].content | int // 0 }}", "fails: ZeroDivisionError$"),
        ("{{ {}[messages[0].content].x }}", "fails: UndefinedError$"),
        ("{# nothing #}", "writes nothing for them$"),
    ],
)
def test_errors_hold_nothing_of_the_messages(templates: Templates, source: str, message: str) -> None:
    error = str(error_of(templates.make(source), "secret"))
    assert re.search(message, error)
    assert "secret" not in error


def test_no_messages_are_an_error(templates: Templates) -> None:
    with pytest.raises(GenerationError, match="fails: UndefinedError"):
        templates.make(LLAMA_2).encode(Chat([]))


BROKEN = {
    "{% for %}": "fails: line 1: Expected an expression",
    "\n{{ x | nope }}": "fails: line 2: No filter named 'nope'",
    "{{ <s> }}": r"fails: line 1: unexpected char '\\udc01'",
    "{{ 10**(10**9) }}": "more than 0.2 s of CPU time",  # worked out while it is compiled
    "{{ " + "(" * 50_000: "fails: RecursionError",
}


@pytest.mark.parametrize(("source", "message"), BROKEN.items(), ids=map(str, range(len(BROKEN))))
def test_a_template_that_does_not_compile_is_refused(templates: Templates, source: str, message: str) -> None:
    with pytest.raises(ModelFileError, match=f"the chat template .*{message}"):
        templates.make(source)
    assert helpers() == []


# Harm

MEMORY, CPU, LENGTH = (
    "needs more than 67,108,864 bytes",
    "more than 0.2 s of CPU time",
    "1,048,576 characters",
)
ANY = f"{MEMORY}|{CPU}|{LENGTH}"  # whichever a machine meets first
HOSTILE = {
    "long string": ("{{ 'x' * 10**9 }}", MEMORY),
    "nested loops": ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", CPU),
    "huge power": ("{{ (10 * n) ** (10**9 * n) }}", CPU),
    "wide": ("{{ 'x' | center(10**9) }}", MEMORY),
    "words": ("{{ lipsum(n=100000) }}", CPU),
    "doubling": (
        "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        MEMORY,
    ),
    "long output": ("{% for a in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", LENGTH),
    "one long piece": ("{{ 'x' * 2000000 }}", LENGTH),
    "long list": ("{{ (range(99999) | list) * 10**5 * n }}", MEMORY),
    "width of a format": ("{{ '{:>1000000000}'.format('x') }}", MEMORY),
    "width of an old format": ("{{ '%1000000000d' | format(n) }}", MEMORY),
    "justified": ("{{ ('x' * n).ljust(10**9) }}", MEMORY),
    "indent": ("{{ 'x\ny' | indent(10**9, true) }}", MEMORY),
    "indent of JSON": ("{{ messages | tojson(indent=10**9) }}", MEMORY),
    "slices": ("{{ messages | slice(10**8) | list }}", ANY),
    "padded lots": ("{{ messages | batch(10**9, 'x') | list }}", MEMORY),
    "replaced": ("{{ ('x' * 10**6) | replace('x', 'y' * 10**6) }}", MEMORY),
    "joined": ("{{ range(99999) | join('x' * 10**6) }}", MEMORY),
    "date": ("{{ strftime_now('%Y' * 10**8) }}", MEMORY),
    "dictionary": ("{{ dict.fromkeys(range(99999), range(99999) | list) | tojson }}", ANY),
    "doubled lists": (
        "{% set ns = namespace(l=[1]) %}{% for a in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        MEMORY,
    ),
    "sorts": ("{% for a in range(99999) %}{% set x = range(99999) | sort %}{% endfor %}", ANY),
    "a call in a loop": (
        "{% macro m(k) %}{% for a in range(99) %}{{ m(k - 1) if k }}{% endfor %}{% endmacro %}{{ m(9 * n) }}",
        CPU,
    ),
    "an endless macro": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "fails: RecursionError"),
    "an endless loop": (
        "{% for a in [[n]] recursive %}{{ loop([a]) }}{% endfor %}",
        "fails: RecursionError",
    ),
    "a namespace in itself": (
        "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x | tojson }}",
        "fails: TypeError",
    ),
    "links": ("{{ ('http://x.y ' * (10**5 * n)) | urlize }}", ANY),
    "words to wrap": ("{{ ('x' * (10**6 * n)) | wordwrap(1) }}", ANY),
    "a long number": ("{{ (10 * n) ** (10**4) }}", "fails: ValueError"),
    "generation": (
        "{% for a in range(99999) %}{% generation %}{{ 'x' * 1000 }}{% endgeneration %}{% endfor %}",
        LENGTH,
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(("harm", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_template_that_goes_over_a_limit_ends_one_prompt_and_no_other(
    templates: Templates, tokenizer: Tokenizer, harm: str, message: str
) -> None:
    template = templates.make(
        "{% set n = messages | length %}{% if messages[0].content == 'bad' %}" + harm + "{% endif %}fine"
    )
    (before,) = helpers()
    rss_before = psutil.Process().memory_info().rss
    assert re.search(message, str(error_of(template, "bad")))
    assert psutil.Process().memory_info().rss < rss_before + (32 << 20)
    assert before.is_running() == message.startswith("fails")
    (after,) = helpers()
    assert template.encode(conversation("good")) == tokenizer.encode("fine", add_bos=False)
    assert helpers() == [after], "who broke it has waited for its successor"


@pytest.mark.long
def test_a_helper_that_does_not_answer_is_replaced(templates: Templates) -> None:
    template = templates.make("fine", Limits(wall_s=0.3))
    (helper,) = helpers()
    os.kill(helper.pid, signal.SIGSTOP)
    assert "takes longer than 0.3 s" in str(error_of(template, "the"))
    assert template.encode(conversation("the"))
    assert helper not in helpers()


def test_a_helper_that_was_killed_is_replaced(templates: Templates) -> None:
    template = templates.make("fine")
    (helper,) = helpers()
    helper.kill()
    assert "ended its process with code -9" in str(error_of(template, "the"))
    assert template.encode(conversation("the"))


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__.__subclasses__()[0] }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ raise_exception.__globals__['sys'].modules }}",
    "{{ ('{0.__class__.__init__.__globals__}' | attr('format'))(messages) }}",
    "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(role='x') }}",
    "{% import 'os' as os %}{{ os.getpid() }}",
    "{{ range(10**7) | length }}",
    "{{ (namespace | attr('__init__')).__globals__ }}",
    "{{ messages | map(attribute='__class__') | map(attribute='__mro__') | list }}",
    "{{ messages | groupby('__class__.__base__') }}",
    "{{ messages | sum(attribute='__class__') }}",
    "{{ messages | selectattr('__class__.__mro__') | list }}",
    "{{ ('%s' | attr('__mod__'))(1) }}",
    "{{ '{0.__init__.__globals__}'.format(raise_exception) }}",
    "{{ '{a.__class__.__mro__}'.format_map({'a': 1}) }}",
    "{{ strftime_now.__globals__.os }}",
    "{{ strftime_now.__call__.__self__.x }}",
    "{{ dict.__class__.__init__.__globals__ }}",
    "{{ dict.mro()[1] }}",
    "{{ namespace(__class__=1) }}",
    "{{ namespace(**{'_x': 1}) }}",
    "{{ self._TemplateReference__context.environment.globals.x }}",
    "{{ joiner.__init__.__globals__['Any'] }}",
    "{{ [].__reduce_ex__(2) }}",
    "{{ (1).__class__.from_bytes(messages) }}",
    "{{ loop.__class__.x }}",
    "{% for m in messages %}{{ loop.__init__.__globals__.x.y }}{% endfor %}",
    "{% macro m() %}{% endmacro %}{{ m.__call__.__globals__.x }}",
    "{% call raise_exception.__call__() %}{% endcall %}",
    "{% include '/etc/passwd' %}",
    "{% from 'x' import y %}{{ y }}",
    "{% extends 'x' %}",
]


@pytest.mark.long
@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_cannot_leave_the_sandbox(templates: Templates, source: str) -> None:
    assert re.search(r"fails: (\w+)$", str(error_of(templates.make(source), "the")))


# The helper


def test_threads_take_turns(templates: Templates, tokenizer: Tokenizer) -> None:
    template = templates.make("{{ messages[0].content }}")
    texts = [f"the {number}" for number in range(100)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: template.encode(conversation(text)), texts))
    assert found == [tokenizer.encode(text, add_bos=False) for text in texts]


def test_a_helper_ends_with_its_template(templates: Templates) -> None:
    template = templates.make("fine")
    (helper,) = helpers()
    template.close()
    template.close()
    assert not helper.is_running()
