"""What a grammar takes."""

from llguidance import LLMatcher, LLTokenizer

_BYTES = LLTokenizer("byte")


def takes(grammar: str, text: str) -> bool:
    """Whether a grammar takes a text as a whole."""
    matcher, ids = LLMatcher(_BYTES, grammar, log_level=0), list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())
