"""Texts of every kind for the tokenizer's tests: words of a made-up language, and what breaks tokenizers."""

import random
import string
from functools import cache

import pytest

SYLLABLES = ("ka", "lo", "mi", "ter", "ben", "stra", "ing", "the", "o", "und", "é", "ño", "ла", "ма", "山")
STRANGE = (
    *("🦙", "👩‍👩‍👧‍👦", "🇫🇷", "🏳️‍🌈", "你好", "世界", "にほん", "한국", "العربية", "עברית", "हिन्दी", "ไทย"),
    *(" ", "  ", "    ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u200b", "\u200f", "\ufeff", "\u2028"),
    *(
        "e\u0301",
        "n\u0303o",
        "\u0000",
        "\u0007",
        "\u007f",
        "\u0085",
        "\U0010ffff",
        "\ufffd",
        "ﬁ",
        "Ａ",
        "▁",
        "▁▁",
    ),
    *("<s>", "</s>", "<unk>", "<0x41>", "<|tool|>", "<|end|>", "[INST]", "<<SYS>>", "1234567", "'s", "..."),
    *("aaaaaaa", "ooooo", "lolololo", "thethethe", "kakaterter"),
)
#: Words whose capitals, suffixes and neighbours families cut differently.
CASES = (
    *("helloWorld", "HTMLParser", "ПриветМир", "ÉTÉété", "ǅungla", "it's", "IT'S", "we'LL", "I'd", "l'été"),
    *(
        " 12 kg",
        "x86_64",
        "3.14",
        "1,234,567",
        "abc123",
        "123abc",
        "½",
        "Ⅻ",
        "٣٤٥",
        "१२३",
        "a_b",
        "/usr/bin\n",
    ),
)
SCRIPTS = "漢字かなカナ한국어ไทยहिन्दीעבריתаЯßœﬁʰªͅ、。，！「」・ー々〇𝒳𝟙€№™…–“”"


def words(rng: random.Random, num_words: int) -> str:
    return " ".join("".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(num_words))


def mixed_text(rng: random.Random) -> str:
    """Words, strange characters and single code points from all planes, in any order."""
    parts = []
    for _ in range(rng.randrange(12)):
        kind = rng.randrange(4)
        if kind == 0:
            parts.append(words(rng, rng.randint(1, 4)))
        elif kind == 1:
            parts.append(rng.choice(STRANGE))
        elif kind == 2:
            parts.append("".join(rng.choices(string.printable, k=rng.randint(1, 8))))
        else:
            parts.append(chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)))))
    return "".join(parts)


@cache
def mixed_texts(num_texts: int = 1_500) -> tuple[str, ...]:
    """The strange ones, and so many others."""
    rng = random.Random(1)
    return ("", *STRANGE, *(mixed_text(rng) for _ in range(num_texts)))


#: How many texts equal an oracle.
NUM_TEXTS = pytest.mark.parametrize("num_texts", [1_500, pytest.param(20_000, marks=pytest.mark.slow)])


def cut_text(rng: random.Random) -> str:
    """A mixed text with much of what families cut differently: numbers, cases, scripts, signs, spaces."""
    parts = [mixed_text(rng)]
    for _ in range(rng.randint(2, 8)):
        kind = rng.randrange(6)
        if kind == 0:
            parts.append("".join(rng.choices("0123456789", k=rng.randint(1, 9))))
        elif kind == 1:
            parts.append(rng.choice(CASES))
        elif kind == 2:
            parts.append("".join(rng.choices(SCRIPTS, k=rng.randint(1, 6))))
        elif kind == 3:
            parts.append("".join(rng.choices("!#$%&()*+,-./:;<=>?@[\\]^_`{|}~'\"", k=rng.randint(1, 5))))
        else:
            parts.append("".join(rng.choices(" \t\r\n", k=rng.randint(1, 5))))
    return "".join(parts)
