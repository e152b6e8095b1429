"""Origins in HERD_GATEWAY_ORIGINS: each is what a browser sends, or is refused with the fix."""

import json
import random
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from llama_herd.errors import SettingsError
from llama_herd.tasks.gateway.origin import read_origins
from llama_herd.tasks.gateway.settings import GatewaySettings

#: Reads lines with origins as a browser does, and writes each as a browser would send it.
NODE = """
const lines = JSON.parse(require('fs').readFileSync(0))
const sent = ({protocol, host}) => `${protocol}//${host}`
console.log(JSON.stringify(lines.map((line) => URL.canParse(line) ? sent(new URL(line)) : '')))
"""
SCHEMES = ("http", "https", "chrome-extension", "capacitor")
HOSTS = (
    "a.example",
    "x-1.b.c.example",
    "localhost",
    "127.0.0.1",
    "[::1]",
    "[2001:db8::2]",
    "xn--bcher-kva.example",
)
PORTS = ("", ":80", ":443", ":3000", ":65535")
ODD = (
    "*",
    "/",
    ":",
    "%",
    " ",
    "[",
    "]",
    '"',
    "@",
    "?",
    "#",
    ".",
    "0",
    "A",
    "\u00fc",
    "https://",
    "//",
    "null",
    "\\",
)


def origins_of(text: str) -> frozenset[str]:
    return GatewaySettings.read(gateway_origins=text).origins


def spelled(chance: random.Random) -> Iterator[tuple[str, str]]:
    """Origins as browsers send them, and each of them as a person may write it."""
    for scheme in SCHEMES:
        for host in HOSTS:
            for port in PORTS:
                own = {"http": ":80", "https": ":443"}.get(scheme)
                written = f"{scheme}://{host}{port}{chance.choice(('', '/'))}"
                yield (
                    f"{scheme}://{host}{'' if port == own else port}",
                    chance.choice((written, written.upper())),
                )


@pytest.mark.long
def test_an_origin_may_be_written_in_any_way() -> None:
    for sent, written in spelled(random.Random(5)):
        assert origins_of(f" {written} ,") == {sent}, written
    assert origins_of("https://B.example:443/, http://a.example") == {"https://b.example", "http://a.example"}
    assert origins_of("") == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        *(
            "*",
            "https://*",
            "https://*.example.com",
            "null",
            "app.example.com",
            "//a.example",
            "https://",
            "https:",
        ),
        *("https://a.example/app", "https://a.example?", "https://a.example#x", "https://me@a.example"),
        *('["https://a.example"]', '"https://a.example"', "https://a.example https://b.example"),
        *(
            "https://a.example:70000",
            "https://a.example:x",
            "https://127.1",
            "https://[::1",
            "https://b\u00fccher.example",
        ),
    ],
)
def test_what_no_browser_sends_is_refused_with_the_fix(text: str) -> None:
    with pytest.raises(SettingsError, match=r"gateway_origins.*Fix: write it as https://"):
        origins_of(f"https://good.example,{text}")


def mutated(chance: random.Random) -> str:
    text = f"{chance.choice(SCHEMES)}://{chance.choice(HOSTS)}{chance.choice(PORTS)}"
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(text) + 1)
        text = text[:place] + chance.choice(ODD) + text[place + chance.randint(0, 2) :]
    return text.replace(",", "").replace("xn--", "")  # whose letters a browser checks one by one


@pytest.mark.long
@pytest.mark.skipif(shutil.which("node") is None, reason="it reads addresses as browsers do")
def test_what_is_taken_is_what_a_browser_sends() -> None:
    chance = random.Random(7)
    taken = []
    for text in (mutated(chance) for _ in range(20_000)):
        try:
            taken += sorted(read_origins(text))
        except ValueError:
            continue
    assert len(taken) > 200
    asked = subprocess.run(
        ["node", "-e", NODE], input=json.dumps(taken), capture_output=True, text=True, check=True
    )
    assert [
        (one, sent) for one, sent in zip(taken, json.loads(asked.stdout), strict=True) if one != sent
    ] == []
