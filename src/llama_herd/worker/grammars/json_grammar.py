"""Grammars of schemas that llguidance holds as they are."""

import json
from typing import Any

from llguidance import LLMatcher, LLTokenizer

#: A vocabulary of single bytes: what a grammar takes over it, it takes over a model's, too.
BYTES = LLTokenizer("byte")

#: With little white space, since a model may draw it without end, and as schemas say, whatever a schema's own
#: `x-guidance` wants. Each text has one spelling: an escape of another character would spell a name that a
#: schema declares as one that it does not.
JSON_OPTIONS: Any = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": True,
    "whitespace_pattern": r" |\n[ \t]{0,24}",
    "coerce_one_of": False,
    "lenient": False,
    "json_allowed_escapes": 'nrbtf\\"',
}
#: With codes of the characters that have no short escape.
VALUE_OPTIONS: Any = {**JSON_OPTIONS, "json_allowed_escapes": 'nrbtf\\"u'}


def json_grammar(schema: Any, options: Any = JSON_OPTIONS) -> str:
    """The grammar of a schema that llguidance holds as it is."""
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
