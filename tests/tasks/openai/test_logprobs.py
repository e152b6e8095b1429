"""Scores of completions whose tokens are parts of characters, equal, empty or unknown."""

from itertools import pairwise
from random import Random

import pytest

from llama_herd.tasks.openai.logprobs import Echo, Offsets, logprobs_of
from llama_herd.tasks.openai.request_body import COMPLETIONS
from llama_herd.tasks.protocol.events import Pieces, Started, Token
from llama_herd.tasks.protocol.result import ResultChoice

TEXT = "Über 🦙 — a\u0301 \\ bytes: the\n"
#: Every part of it up to six bytes, so also parts of characters, and what no text is made of.
PARTS = sorted({TEXT.encode()[i : i + n] for i in range(len(TEXT.encode())) for n in range(7)} | {b"\xff"})


def drawn_pieces(random: Random, num: int = 40) -> Pieces:
    """Ids and what they stand for: some share a piece, and of some nobody knows it."""
    known = random.sample(range(num), random.randint(num // 2, num))
    return {token_id: random.choice(PARTS).decode("latin-1") for token_id in known}


def drawn_output(random: Random, num_top: int, num: int = 12) -> ResultChoice:
    ids = tuple(random.choices(range(40), k=num))
    scores = tuple(round(random.uniform(-9, 0), 3) for _ in ids)
    tops = [sorted(random.sample(range(40), num_top)) for _ in ids]
    top_logprobs = tuple(tuple((one, -one / 7) for one in top) for top in tops) if num_top else None
    return ResultChoice(
        index=0, text="", ids=ids, finish_reason="length", logprobs=scores, top_logprobs=top_logprobs
    )


@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
def test_no_alternative_is_lost_and_the_token_itself_is_there(num_top: int) -> None:
    for seed in range(60):
        random = Random(seed)
        pieces, output = drawn_pieces(random), drawn_output(random, num_top)
        found = logprobs_of(COMPLETIONS, output, pieces)
        assert found is not None
        assert output.logprobs is not None
        for place, token_id in enumerate(output.ids):
            told = found["top_logprobs"][place]
            top = dict(output.top_logprobs[place]) if output.top_logprobs else {}
            assert len(told) == len(top.keys() | {token_id})
            assert told[found["tokens"][place]] == found["token_logprobs"][place] == output.logprobs[place]
            assert sorted(told.values()) == sorted({**top, token_id: output.logprobs[place]}.values())


def test_a_stream_has_the_scores_of_the_whole_however_it_is_cut() -> None:
    for seed in range(60):
        random = Random(seed)
        pieces, output = drawn_pieces(random), drawn_output(random, 3)
        whole, offsets, start = logprobs_of(COMPLETIONS, output, pieces), Offsets(), 0
        streamed: dict[str, list[object]] = {}
        while start < len(output.ids):
            end = start + random.randint(1, 4)
            part = output.model_copy(
                update={
                    name: getattr(output, name)[start:end] for name in ("ids", "logprobs", "top_logprobs")
                }
            )
            for name, told in (logprobs_of(COMPLETIONS, part, pieces, offsets) or {}).items():
                streamed.setdefault(name, []).extend(told)
            start = end
        assert streamed == whole


@pytest.mark.parametrize("is_prompt", [False, True])
def test_a_token_begins_where_its_text_does(is_prompt: bool) -> None:
    """The tokens of a text, cut anywhere. A prompt's first one may have a space that its text has not."""
    for seed in range(60):
        random, data = Random(seed), TEXT.encode()
        cuts = [0, *sorted(random.sample(range(1, len(data)), 9)), len(data)]
        parts = [data[start:end] for start, end in pairwise(cuts)]
        given = [b" " + parts[0], *parts[1:]] if is_prompt else parts
        pieces = {token_id: part.decode("latin-1") for token_id, part in enumerate(given)}
        scores = (-1.0,) * (len(parts) - is_prompt)
        if is_prompt:
            begin = Started(
                at_ms=1, seq=1, job="j", epoch=1, attempt=1, worker="w", model="m", seed=7,
                prompt_ids=tuple(pieces), prompt_text=TEXT, pieces=pieces,
            )  # fmt: skip
            first = Token(seq=2, job="j", epoch=1, i=0, ids=(), text="", prompt_logprobs=scores)
            found = Echo.from_events(begin, first).logprobs
        else:
            ids = tuple(pieces)
            output = ResultChoice(index=0, text=TEXT, ids=ids, finish_reason="length", logprobs=scores)
            found = logprobs_of(COMPLETIONS, output, pieces)
        assert found is not None
        for name, offset, cut in zip(found["tokens"], found["text_offset"], cuts, strict=False):
            begins = data[:cut].decode(errors="ignore")
            assert offset == len(begins)
            if not name.startswith("bytes:\\") and data[:cut] == begins.encode():
                assert TEXT[offset:].startswith(name) or name.startswith("bytes:")
