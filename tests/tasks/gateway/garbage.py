"""Bodies that are nearly right: each gets an error, or is as good as the one it was made of."""

import json
import random
import re
from http.client import HTTPConnection

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/jobs")

GOOD = (
    b'{"model": "tales", "prompt": "the secret prompt", "max_tokens": 4, "n": 2, "temperature": 0.5,'
    b' "stop": ["a", "b"], "logit_bias": {"5": 1.5}, "stream": true, '
    b'"stream_options": {"include_usage": true}}'
)
ODD = (b"null", b"1e999", b"NaN", b"[", b'"\\ud800"', b"-1", b"{}", b"9" * 400, b'"model": "x", ', b"\xff")


def mutated(chance: random.Random) -> bytes:
    """A good body with some bytes changed, cut out, doubled or put in."""
    body = bytearray(GOOD)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(body))
        match chance.randrange(4):
            case 0:
                body[place] = chance.randrange(256)
            case 1:
                del body[place : place + chance.randint(1, 20)]
            case 2:
                body[place:place] = body[place : place + chance.randint(1, 20)]
            case 3:
                body[place:place] = chance.choice(ODD)
    return bytes(body)


def send_garbage(connection: HTTPConnection, num: int) -> None:
    """Send as many over one connection, and check each answer."""
    chance = random.Random(7)
    for number in range(num):
        connection.request("POST", PATHS[number % 3], mutated(chance))
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status in (200, 202, 400, 404, 422), (answer.status, text)
        if answer.status >= 400:
            assert json.loads(text)["error"]["message"]
            assert not re.search(b"secret", text)
