"""No template takes time or memory without end, and none leaves the sandbox."""

import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from llama_herd.errors import GenerationError
from llama_herd.model.text.chat import ChatTemplates
from llama_herd.model.text.control_tokens import ControlTokens
from llama_herd.model.text.helper import HelperLimits
from llama_herd.model.text.template_files import DEFAULT
from llama_herd.model.text.tokenizer import Tokenizer
from tests.model.text.helper_processes import helpers
from tests.model.text.made_templates import (
    LIMITS,
    SHORT_LIMITS,
    MadeTemplates,
    conversation,
    error_of,
)

MEMORY, CPU, LENGTH = (
    "needs more than 67,108,864 bytes",
    "more than 0.1 s of CPU time",
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


#: Each ends a helper in its own way; the others do what one of these does by other words.
QUICK = ("long string", "nested loops", "huge power", "one long piece", "long list", "joined", "dictionary")


def is_quick(name: str, message: str) -> bool:
    return name in QUICK or message.startswith("fails")


@pytest.mark.long
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        pytest.param(harm, message, id=name, marks=[] if is_quick(name, message) else [pytest.mark.slow])
        for name, (harm, message) in HOSTILE.items()
    ],
)
def test_a_template_that_goes_over_a_limit_ends_one_prompt_and_no_other(
    templates: MadeTemplates, tokenizer: Tokenizer, harm: str, message: str
) -> None:
    template = templates.make(
        "{% set n = messages | length %}{% if messages[0].content == 'bad' %}" + harm + "{% endif %}fine",
        SHORT_LIMITS if CPU in message else LIMITS,
    )
    (before,) = helpers()
    rss_before = psutil.Process().memory_info().rss
    assert re.search(message, str(error_of(template, "bad")))
    assert psutil.Process().memory_info().rss < rss_before + (32 << 20)
    assert before.is_running() == message.startswith("fails")
    (after,) = helpers()
    assert template.encode(conversation("good")) == tokenizer.encode("fine", add_bos=False)
    assert helpers() == [after], "who broke it has waited for its successor"


def test_a_chat_that_is_too_long_to_be_read_is_told_so(templates: MadeTemplates) -> None:
    template = templates.make("fine", LIMITS._replace(memory_bytes=16 << 20))
    assert "needs more than 16,777,216 bytes of memory" in str(error_of(template, "é" * 2_000_000))
    assert template.encode(conversation("the"))


@pytest.mark.long
@pytest.mark.parametrize("num_chars", [1, 1 << 20])
def test_a_helper_that_does_not_answer_is_replaced(templates: MadeTemplates, num_chars: int) -> None:
    """Also one that is asked more than its connection takes while it reads nothing."""
    template = templates.make("fine", HelperLimits(wall_s=0.3))
    (helper,) = helpers()
    os.kill(helper.pid, signal.SIGSTOP)
    with pytest.raises(GenerationError, match=r"takes longer than 0\.3 s") as caught:
        template.encode(conversation("x" * num_chars))
    assert (caught.value.code, caught.value.retriable) == ("preparation_error", True)
    assert template.encode(conversation("the"))
    assert helper not in helpers()


def test_a_helper_that_is_late_at_the_start_says_nothing_of_the_template(
    templates: MadeTemplates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a worker that starts on a busy machine would refuse all chats for as long as it runs."""
    monkeypatch.setattr("llama_herd.model.text.helper.START_S", 0.0)
    with pytest.raises(GenerationError, match="takes longer than 0 s") as caught:
        templates.make("fine")
    assert caught.value.retriable


@pytest.mark.long
def test_a_helper_that_was_killed_is_replaced(templates: MadeTemplates) -> None:
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


@pytest.fixture(scope="module")
def escapes(tokenizer: Tokenizer, control_tokens: ControlTokens) -> Iterator[ChatTemplates]:
    """A model with all of them, each under its own text as a name, and one that does nothing."""
    sources = {source: source for source in ESCAPES} | {DEFAULT: "fine"}
    with ChatTemplates(sources, tokenizer, control_tokens, LIMITS) as templates:
        yield templates


@pytest.mark.long
@pytest.mark.parametrize("source", ESCAPES)
def test_a_template_cannot_leave_the_sandbox(escapes: ChatTemplates, source: str) -> None:
    chat = conversation("the")
    with pytest.raises(GenerationError, match=r"fails: (\w+)$") as caught:
        escapes.encode(replace(chat, template=source))
    assert caught.value.code == "template_error"
    assert escapes.encode(chat)
