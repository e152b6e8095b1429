"""How outputs in JSON are written, and grammars of schemas for llguidance."""

import json
from typing import Any

from llguidance import LLMatcher

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


def json_grammar(schema: Any) -> str:
    """The grammar of a schema that llguidance holds as it is."""
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_OPTIONS)
