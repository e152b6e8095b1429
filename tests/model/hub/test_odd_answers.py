"""Whatever a hub answers, a model comes whole and right, or one sentence says why not, and little is kept."""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from llama_herd.errors import HerdError, HubUnavailable, ModelFileError
from llama_herd.model.hub import fetch, listing
from llama_herd.model.hub.choice import Room
from llama_herd.model.hub.fetch import HubModel, fetch_model
from llama_herd.model.hub.name import HubName
from tests.model.hub.odd_hub import (
    CONTENT,
    NAME,
    REPO,
    Answer,
    OddHub,
    head,
    json_answer,
    listed,
    sibling,
    whole_file,
)

constants = pytest.importorskip("huggingface_hub.constants")

SIZE = len(CONTENT)
#: The list, and a file as often as it is tried, each time by as many redirects as a client follows.
MOST_ASKED = 1 + 21 * (fetch.MAX_TRIES + 1)
#: Bytes that a cache may have beside a file: notes of locks and of the newest commit.
BESIDE = 1000


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of one's own, and no pause before another try."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(fetch, "LONGEST_PAUSE_S", 0.0)
    return tmp_path


def fetched(hub: OddHub, monkeypatch: pytest.MonkeyPatch) -> HubModel | HerdError:
    """The model, or the error that a person reads. Any other is a failure of ours."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    try:
        return fetch_model(HubName(REPO), lambda: Room(1 << 40, ""), lambda _: None, lambda *_: None)
    except HerdError as error:
        return error


def hold(found: HubModel | HerdError, machine: Path) -> None:
    """A model is as it should be, an error is one line, and no more bytes are kept than were listed."""
    if isinstance(found, HerdError):
        assert isinstance(found, HubUnavailable | ModelFileError)
        assert "\n" not in str(found)
        assert str(found).isprintable()
    else:
        assert found.path.read_bytes() == CONTENT
    kept = [path for path in machine.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in kept) <= SIZE + BESIDE
    assert all((machine / "cache") in path.parents for path in kept)


DEEP = "[" * 100_000
LISTS: Mapping[str, Callable[[], Answer]] = {
    "a page": lambda: Answer(head(Content_Type="text/html") + b"<html>sign in</html>"),
    "nothing": lambda: Answer(b""),
    "an empty body": lambda: Answer(head(Content_Length=0)),
    "no HTTP": lambda: Answer(b"\0\xff\r\n\r\n"),
    "deep": lambda: Answer(head() + f'{{"sha": {DEEP}'.encode()),
    "deep and whole": lambda: Answer(head() + f'{{"sha": {DEEP}{"]" * 100_000}}}'.encode()),
    "many": lambda: listed(*[sibling()] * (listing.MAX_FILES + 1)),
    "an array": lambda: json_answer([1]),
    "a number": lambda: json_answer(5),
    "a null": lambda: json_answer(None),
    "siblings of another kind": lambda: listed(siblings={"a": 1}),
    "no commit": lambda: listed(sibling(), sha=None),
    "a commit that is a list": lambda: listed(sibling(), sha=[]),
    "a commit that is a path": lambda: listed(sibling(), sha="../" * 13 + "a"),
    "a body that never ends": lambda: Answer(head() + b'{"a": "', b"x"),
    "spaces that never end": lambda: Answer(head(), b" "),
    "headers that never end": lambda: Answer(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
    "an error that never ends": lambda: Answer(head("500 Oh"), b"x"),
    "a refusal that never ends": lambda: Answer(head("404 Not Found", X_Error_Code="RepoNotFound"), b"x"),
    "half of it": lambda: Answer(head(Content_Length=9999) + b'{"sha"'),
    "another length": lambda: Answer(head(Content_Length="x") + b"{}"),
    "a negative length": lambda: Answer(head(Content_Length=-5) + b"{}"),
    "no UTF-8": lambda: Answer(head() + b'{"a": "\xff"}'),
    "half a character": lambda: Answer(head() + b'{"a": "\\ud800"}'),
    "not packed": lambda: Answer(head(Content_Encoding="gzip") + b"{}"),
    "a circle": lambda: Answer(head("302 Found", Location="<here>/api/models/x")),
    "elsewhere": lambda: Answer(head("302 Found", Location="file:///etc/passwd")),
    "no place": lambda: Answer(head("302 Found", Location="http://[::bad/")),
    "another protocol": lambda: Answer(head("101 Switching Protocols", Upgrade="x")),
    "nothing new": lambda: Answer(head("304 Not Modified")),
    "later": lambda: Answer(head("429 Later", Retry_After="999999999", Content_Length=0)),
    "busy": lambda: Answer(head("503 Busy", Retry_After="999999999", Content_Length=0)),
    "a secret": lambda: Answer(head("500 Oh", X_Error_Message="a\x1b[2J?Signature=secret", Content_Length=0)),
}
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    1 << 70,
    1.5,
    "5",
    [],
    {},
    float("nan"),
    "x" * 300,
    "../../x",
    "/etc/x.gguf",
    "a\u202e.gguf",
)
SIZES = {f"a size of {value!r:.20}": value for value in VALUES}
NAMES = {f"a name of {value!r:.20}": value for value in (*VALUES, "..", ".", "a/../b.gguf", "a//b.gguf", "")}
DIGESTS = {f"a digest of {value!r:.20}": value for value in (*VALUES, "..", "0" * 64)}


@pytest.mark.parametrize("name", LISTS)
def test_an_odd_list_is_one_sentence(name: str, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with OddHub(list=LISTS[name]()) as hub:
        found = fetched(hub, monkeypatch)
        assert isinstance(found, HerdError)
        assert "secret" not in str(found)
        hold(found, machine)
        assert hub.num_asked <= MOST_ASKED


def test_odd_files_in_a_list_are_left_out(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = [
        *(sibling(num_bytes=value) for value in SIZES.values()),
        *(sibling(name=value) for value in NAMES.values()),
        *(sibling(sha256=value) for value in DIGESTS.values() if value != "0" * 64),
        *VALUES,
    ]
    with OddHub(list=listed(*odd)) as hub:
        found = fetched(hub, monkeypatch)
        assert isinstance(found, ModelFileError)
        hold(found, machine)
    with OddHub(list=listed(*odd, sibling())) as hub:
        found = fetched(hub, monkeypatch)
        assert isinstance(found, HubModel)
        hold(found, machine)


FILES: Mapping[str, Callable[[int], Answer]] = {
    "a page": lambda begin: Answer(head(Content_Type="text/html") + b"<html>sign in</html>"),
    "nothing": lambda begin: Answer(b""),
    "a longer one": lambda begin: Answer(head(Content_Length=SIZE + 1) + CONTENT + b"x"),
    "a longer one without a length": lambda begin: Answer(head() + CONTENT + b"x"),
    "one that never ends": lambda begin: Answer(head() + CONTENT, b"x"),
    "one that never ends, in chunks": lambda begin: Answer(
        head(Transfer_Encoding="chunked"), b"10\r\n" + b"x" * 16 + b"\r\n"
    ),
    "a shorter one": lambda begin: Answer(head(Content_Length=5) + b"short"),
    "half of it": lambda begin: Answer(head(Content_Length=SIZE) + CONTENT[:99]),
    "half of it, always from the start": lambda begin: Answer(head(Content_Length=SIZE) + CONTENT[:-1]),
    "other bytes": lambda begin: Answer(head(Content_Length=SIZE) + CONTENT[::-1]),
    "another part": lambda begin: Answer(
        head("206 Partial Content", Content_Range=f"bytes 7-{SIZE - 1}/{SIZE}") + CONTENT[7:]
    ),
    "a part of nothing": lambda begin: Answer(head("206 Partial Content") + CONTENT),
    "a part of another unit": lambda begin: Answer(
        head("206 Partial Content", Content_Range="x 0-1/2") + CONTENT
    ),
    "no such range": lambda begin: Answer(head("416 No", Content_Length=0)),
    "no such range but the whole": lambda begin: whole_file(0) if not begin else Answer(head("416 No")),
    "no content": lambda begin: Answer(head("204 No Content")),
    "another length": lambda begin: Answer(head(Content_Length="x") + CONTENT),
    "an error that never ends": lambda begin: Answer(head("500 Oh"), b"x"),
    "later": lambda begin: Answer(head("429 Later", Retry_After="999999999", Content_Length=0)),
    "a circle": lambda begin: Answer(head("302 Found", Location="<here>/x")),
    "elsewhere": lambda begin: Answer(head("302 Found", Location="file:///etc/passwd")),
    "no place": lambda begin: Answer(head("302 Found", Location="http://[::bad/")),
    "not packed": lambda begin: Answer(head(Content_Encoding="gzip", Content_Length=SIZE) + CONTENT),
    "a header that never ends": lambda begin: Answer(b"HTTP/1.1 200 OK\r\na: ", b"x"),
}


@pytest.mark.parametrize("has_part", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FILES)
def test_an_odd_file_is_one_sentence_or_comes_all_the_same(
    name: str, has_part: bool, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with OddHub(file=FILES[name]) as hub:
        if has_part:
            leave_part(hub, CONTENT[:50], monkeypatch)
        hold(fetched(hub, monkeypatch), machine)
        assert hub.num_asked <= MOST_ASKED


def leave_part(hub: OddHub, part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a download that broke off has left."""
    blobs = listing.storage_folder(REPO) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{sibling()['lfs']['sha256']}.incomplete").write_bytes(part)


def damaged(rng: Random, answer: Answer) -> Answer:
    """An answer whose head was changed here and there."""
    raw = bytearray(answer.once)
    end = raw.index(b"\r\n\r\n") + 4
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(end)
        match rng.randrange(3):
            case 0:
                raw[place] = rng.randrange(256)
            case 1:
                del raw[place : place + rng.randrange(9)]
            case 2:
                raw[place:place] = rng.choice((b"\r\n", b"0", b"9", b":", b"\0", rng.randbytes(4)))
    return Answer(bytes(raw))


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 40))]
)
def test_a_damaged_answer_is_one_sentence_or_does_no_harm(
    seed: int, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    monkeypatch.setattr(fetch, "MAX_TRIES", 2)
    for number in range(6):
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(machine / str(number) / "cache"))
        hub = OddHub(list=damaged(rng, listed(sibling()))) if number % 2 else OddHub()
        if not number % 2:
            hub.file = lambda begin: damaged(rng, whole_file(begin))
        with hub:
            hold(fetched(hub, monkeypatch), machine / str(number))


def test_a_file_that_breaks_again_and_again_comes_as_long_as_more_of_it_comes(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(begin: int) -> Answer:
        whole = whole_file(begin).once
        return Answer(whole[: whole.index(b"\r\n\r\n") + 4 + SIZE // 3])

    with OddHub(file=some) as hub:
        found = fetched(hub, monkeypatch)
        assert isinstance(found, HubModel)
        assert hub.num_asked == 5  # the list, and the file four times
        hold(found, machine)
    assert found.path.name == NAME


def test_a_file_that_is_announced_longer_than_listed_is_refused_before_it_comes(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced = Answer(head(Content_Length=SIZE + 1) + CONTENT[:5])
    with OddHub(file=lambda begin: announced) as hub:
        found = fetched(hub, monkeypatch)
        assert isinstance(found, ModelFileError)
        assert f"more bytes are to come than the {SIZE} that the hub has listed" in str(found)
        assert hub.num_asked == 2  # the list, and the file once
        hold(found, machine)
