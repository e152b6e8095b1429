"""A tokenizer without a model: any text comes back, whoever reads its ids."""

from hypothesis import strategies

from llama_herd.tasks.protocol.sampling import MAX_INT
from llama_herd.testing.vocabulary import EOS_ID, Vocabulary
from llama_herd.worker.engine.detokenizer import Detokenizer
from tests.examples import for_any

WORDS = Vocabulary()


@for_any(strategies.text())
def test_any_text_comes_back(text: str) -> None:
    ids = WORDS.encode(text)
    assert all(0 <= one <= MAX_INT and one != EOS_ID for one in ids)
    assert Vocabulary().text_of(ids) == text
    writer = Detokenizer(WORDS.pieces)
    assert "".join(map(writer.write, ids)) + writer.finish() == text


def test_short_words_are_tokens_and_long_ones_several() -> None:
    ids = WORDS.encode("Once upon a capital, naïve")
    pieces = [WORDS.pieces[one].decode(errors="replace") for one in ids]
    assert pieces[:6] == ["Once", " upon", " a", " capi", "tal", ","]


@for_any(strategies.integers(min_value=0, max_value=MAX_INT))
def test_the_ids_of_any_model_are_taken(token_id: int) -> None:
    assert token_id < WORDS.vocab_size
    assert isinstance(WORDS.text_of([token_id]), str)
