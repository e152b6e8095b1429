"""A recording shows what was on the terminal, and when."""

import sys
from xml.etree import ElementTree

from tests.recording import Frame, draw, record, spans

SVG = "{http://www.w3.org/2000/svg}"
COLOURED = "print('\\x1b[1;32mdone\\x1b[0m  a < b & c'); print('last')"


def rows(*texts: str) -> tuple[tuple[tuple[str, str, bool], ...], ...]:
    found = [((text, "#fff", False),) if text else () for text in texts]
    return (*found, *[()] * 60)


def test_a_row_is_there_from_its_first_look_to_the_next_and_the_last_one_to_the_end() -> None:
    frames = [
        Frame(0, rows("a")),
        Frame(1, rows("a", "b")),
        Frame(2, rows("c", "b")),
        Frame(3, rows("", "b")),
    ]
    assert [(one.number, one.row[0][0], one.from_s, one.until_s) for one in spans(frames)] == [
        (0, "a", 0, 2),
        (0, "c", 2, 3),
        (1, "b", 1, None),
    ]


def test_a_picture_without_animation_is_the_last_screen_of_a_real_command() -> None:
    picture = ElementTree.fromstring(draw(record([sys.executable, "-c", COLOURED])))
    shown = [text for text in picture.iter(f"{SVG}text") if text.get("visibility") != "hidden"]
    assert ["".join(text.itertext()).replace("\N{NO-BREAK SPACE}", " ") for text in shown] == [
        "done  a < b & c",
        "last",
    ]
    first = next(shown[0].iter(f"{SVG}tspan"))
    assert (first.text, first.get("fill"), first.get("font-weight")) == ("done", "#57c785", "bold")
