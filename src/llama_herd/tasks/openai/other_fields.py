"""Fields of OpenAI's and vLLM's requests that change nothing here, or are refused, each with why."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from llama_herd.errors import FieldError
from llama_herd.tasks.protocol.close_names import MAX_NAME_CHARS, close_names, did_you_mean


class Neutral(NamedTuple):
    """Why a field is ignored, and the values that may be; None: any value."""

    why: str
    values: tuple[Any, ...] | None = None

    def complaint(self, value: Any) -> str:
        """What is wrong with a value; empty: it may be. In JSON 1.0 is 1, but true is not."""
        known = self.values
        if known is None or any(one == value and _is_bool(one) == _is_bool(value) for one in known):
            return ""
        return f"only supported as {' or '.join(map(json.dumps, known))}"


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


_FOR_OPENAI = "OpenAI's own bookkeeping"
_CACHE = "prompts are cached by themselves, and shared by what they begin with"
_NAME_IT = "without tools it says nothing"
_AS_ALWAYS = "this holds anyway"

NEUTRAL: Mapping[str, Neutral] = {
    "user": Neutral(_FOR_OPENAI),
    "metadata": Neutral(_FOR_OPENAI),
    "safety_identifier": Neutral(_FOR_OPENAI),
    "service_tier": Neutral("there is one tier; `priority` goes first"),
    "prompt_cache_key": Neutral(_CACHE),
    "prompt_cache_options": Neutral(_CACHE),
    "prompt_cache_retention": Neutral(_CACHE),
    "prediction": Neutral("it is a hint for speed, which no answer depends on"),
    "parallel_tool_calls": Neutral(_NAME_IT),
    "store": Neutral("answers are kept as jobs, for as long as these are", (False,)),
    "stream": Neutral(_AS_ALWAYS, (False,)),
    "echo": Neutral(_AS_ALWAYS, (False,)),
    "suffix": Neutral("a text is continued, and no gap in it is filled", ("",)),
    "best_of": Neutral(_AS_ALWAYS, (1,)),
    "functions": Neutral("`tools` took their place", ([],)),
    "function_call": Neutral("`tool_choice` took its place", ("none", "auto")),
    "tool_choice": Neutral(_NAME_IT, ("none", "auto")),
    "modalities": Neutral("a model writes texts", (["text"],)),
    "verbosity": Neutral("a prompt may ask for short answers", ("medium",)),
    # vLLM's, whose clients also send what holds anyway
    "add_generation_prompt": Neutral(_AS_ALWAYS, (True,)),
    "continue_final_message": Neutral(_AS_ALWAYS, (False,)),
    "add_special_tokens": Neutral("a template writes them", (False,)),
    "include_reasoning": Neutral(_AS_ALWAYS, (True,)),
    "include_stop_str_in_output": Neutral(_AS_ALWAYS, (False,)),
    "skip_special_tokens": Neutral(_AS_ALWAYS, (True,)),
    "spaces_between_special_tokens": Neutral(_AS_ALWAYS, (True,)),
    "return_tokens_as_token_ids": Neutral(_AS_ALWAYS, (False,)),
    "return_token_ids": Neutral(_AS_ALWAYS, (False,)),
    "use_beam_search": Neutral(_AS_ALWAYS, (False,)),
    "length_penalty": Neutral("it is for a search by beams", (1,)),
    "bad_words": Neutral(_AS_ALWAYS, ([],)),
}

#: What a refused field is about, with the fix if there is one.
REFUSED: Mapping[str, str] = {
    "audio": "a model writes texts. Fix: leave it out",
    "moderation": "no text is judged here. Fix: leave it out",
    "web_search_options": "nothing is searched here. Fix: a tool of your own",
    **{
        f"guided_{name}": f"vLLM has given it up, too. Fix: structured_outputs.{name}"
        for name in ("json", "regex", "choice", "grammar")
    },
    **dict.fromkeys(
        ("guided_decoding_backend", "guided_whitespace_pattern"),
        "vLLM has given it up, too. Fix: leave it out",
    ),
}


def shown_name(field: str) -> str:
    """A field's name in an error; of what can be none, which may be any text, nothing is said."""
    return field if field.isidentifier() and len(field) <= MAX_NAME_CHARS else "?"


def unknown_fields(given: Iterable[str], known: Collection[str]) -> list[FieldError]:
    """An error for each field that is not known, with the one that may be meant."""
    unknown = (name for name in given if name not in known)
    return [
        FieldError(shown_name(name), f"not supported{did_you_mean(close_names(name, known))}")
        for name in unknown
    ]
