"""Makes grammars of forms and judges them: the program `python -m llama_herd.worker.grammars.judge FD`.

What jobs bring can take time and memory without end. So it is tried here first, where the kernel sets limits:
read, built, and followed for some bytes. A request is a form's kind and its text.
"""

import json
import random
import re
from collections.abc import Mapping
from time import thread_time
from typing import Any

from llguidance import LLMatcher, LLParserLimits, grammar_from

from llama_herd.model.text.helper import HelperAnswer, answer_requests
from llama_herd.tasks.protocol.structured_outputs import ANY_OBJECT
from llama_herd.worker.engine.sampling.constraint import DEAD_END
from llama_herd.worker.grammars.gbnf import gbnf_to_lark, is_gbnf
from llama_herd.worker.grammars.json_grammar import BYTES, VALUE_OPTIONS, json_grammar
from llama_herd.worker.grammars.narrowed_schema import narrowed_schema
from llama_herd.worker.grammars.schema_places import Path, SchemaProblem, places, told
from llama_herd.worker.grammars.whole_output import ANSWER, OutputGrammar, WholeOutput, exactly

#: What the engine says of keywords that it does not know, and how it begins what it says of others.
_UNKNOWN = re.compile(r"Unimplemented keys: (\[.*\])")
_OTHERS = {
    "oneOf": ("oneOf",),
    "min/maxProperties": ("minProperties", "maxProperties"),
    "patternProperty": ("patternProperties",),
}
_OF_COUNTS = " where names may be left out. Fix: require all, or leave it out"
#: What to do about keywords that are not followed, or not everywhere; of others that they be left out.
_FIXES = {
    "maxProperties": _OF_COUNTS,
    "minProperties": _OF_COUNTS,
    "oneOf": " where a value may have two alternatives. Fix: anyOf",
    "propertyNames": " as it stands. Fix: one pattern, or an enum",
    "unevaluatedItems": ". Fix: items",
    "unevaluatedProperties": ". Fix: one object with additionalProperties",
    "uniqueItems": " where items may have many values. Fix: leave it out, as with a list in place of a set",
}
#: Complaints of a schema as a whole, in words of our own.
_WHOLE = {
    "Unable to determine": "asks for too much of one text: patterns, formats and lengths. Fix: fewer of them",
    "Unsatisfiable schema": "lets nothing through: {why}",
    "circular references": "has a $ref that leads back to itself beside other keywords. Fix: a $ref alone",
}
#: What is quoted, or given with its patterns, and where llguidance was then, where nothing fits a schema.
_GIVEN = re.compile(r"([\"']).*\1|[:\n].*", re.DOTALL)
_QUOTED = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|`[^`]*`|/.*/")
MAX_REASON_CHARS = 200

#: The limits of a running grammar: some milliseconds a token, some megabytes an output. A name that may be
#: left out takes four items of a row, so an object may have 1,200 of them.
PARSER_LIMITS = LLParserLimits(
    max_items_in_row=5_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=20_000,
    verbose_errors=False,
)
#: How many bytes a grammar is tried for, each drawn among those that may follow.
TRIED_BYTES = 32
#: Most CPU time for one of these bytes; ordinary schemas take 0.2 ms.
MAX_BYTE_S = 0.05


def judge_form(kind: str, text: str) -> HelperAnswer:
    """The grammar of a form as llguidance reads it; or why there is none, by the path in a schema."""
    if kind == "output":
        return _judged_output(WholeOutput.read(text))
    answer = _validated(kind, text)
    return answer if answer.kind != "text" else _tried(answer.text) or answer


def _validated(kind: str, text: str) -> HelperAnswer:
    """Read the grammar of a form, if there is one, whatever time and memory that takes."""
    try:
        grammar = _grammar(kind, text)
    except SchemaProblem as problem:
        return HelperAnswer("failed", str(problem))
    except (ValueError, RecursionError) as error:
        return HelperAnswer("failed", _reason(str(error)))
    complaint = LLMatcher.validate_grammar(grammar)
    if complaint:
        reason = _schema_reason(complaint, text, grammar) if kind in ("json", "value") else _reason(complaint)
        return HelperAnswer("failed", reason)
    return HelperAnswer("text", grammar)


def _judged_output(output: WholeOutput) -> HelperAnswer:
    """The grammar of a whole output. What is wrong is told with its field."""
    tools = []
    for tool in output.tools:
        found = HelperAnswer("failed", "must be the schema of an object")
        if isinstance(tool.schema, Mapping) and "object" in _types(tool.schema):
            found = _validated("json", json.dumps({**tool.schema, "type": "object"}))
        if found.kind != "text" and tool.must_hold:
            return HelperAnswer("failed", f"{tool.field}: {found.text}")
        grammar = found.text if found.kind == "text" else json_grammar(ANY_OBJECT)
        tools.append((tool.name, f"%json {json.dumps(_only_part(grammar)['json_schema'])}"))
    grammars, answer = list[object](), None
    if output.answer is not None:
        found = _validated(output.answer.kind, output.answer.text)
        if found.kind != "text":
            return HelperAnswer("failed", f"{output.answer.field}: {found.text}")
        is_lark = not found.text.startswith("{")
        part = {"lark_grammar": found.text} if is_lark else _only_part(found.text)
        grammars, answer = [{**part, "name": ANSWER}], f"@{ANSWER}"

    def whole(mark_ids: Mapping[str, int]) -> str:
        lark = "\n".join(OutputGrammar(output, tools, answer, mark_ids).rules())
        return json.dumps({"grammars": [{"lark_grammar": lark}, *grammars]})

    made = whole(output.mark_ids)
    complaint = LLMatcher.validate_grammar(made)
    if complaint:
        return HelperAnswer("failed", f"tools: {_reason(complaint)}")
    return _tried(whole({})) or HelperAnswer("text", made)  # over bytes, of which none is a control token


def _types(schema: Mapping[str, Any]) -> list[object]:
    given = schema.get("type", "object")
    return given if isinstance(given, list) else [given]


def _only_part(grammar: str) -> dict[str, Any]:
    (found,) = json.loads(grammar)["grammars"]
    return dict(found)


def _grammar(kind: str, text: str) -> str:
    match kind:
        case "json":
            return json_grammar(narrowed_schema(json.loads(text)))
        case "value":
            return json_grammar(narrowed_schema(json.loads(text)), VALUE_OPTIONS)
        case "regex":
            return LLMatcher.grammar_from_regex(text)
        case "choice":  # as an expression: the engine's own choices are parsed, and few thousand are too many
            return LLMatcher.grammar_from_regex("|".join(map(exactly, json.loads(text))))
    return grammar_from("grammar", gbnf_to_lark(text) if is_gbnf(text) else text)


def _tried(grammar: str) -> HelperAnswer | None:
    """What is wrong with a grammar on a way of some bytes; None: it goes so far within the limits."""
    matcher = LLMatcher(BYTES, grammar, log_level=0, limits=PARSER_LIMITS)
    rng, too_much = random.Random(0), HelperAnswer("limit", "takes too much work for a token")
    for _ in range(TRIED_BYTES):
        started_s = thread_time()
        mask = matcher.compute_bitmask()
        if thread_time() - started_s > MAX_BYTE_S:
            return too_much
        allowed = [one for one in range(256) if mask[one // 8] >> one % 8 & 1]
        if not allowed or not matcher.consume_token(rng.choice(allowed)) or matcher.is_stopped():
            break
    if not matcher.is_error():
        return None
    if matcher.get_error().startswith(DEAD_END):
        return HelperAnswer("failed", "leads to a place where nothing may follow, not even an end")
    return too_much


def _schema_reason(complaint: str, text: str, grammar: str) -> str:
    """Say why a schema is refused, with the place of the first keyword that is not supported."""
    found, begun = _UNKNOWN.search(complaint), complaint.split(" ")[0]
    unknown = json.loads(found[1]) if found else _OTHERS.get(begun, ())
    if whole := next((one for known, one in _WHOLE.items() if complaint.startswith(known)), ""):
        why = _GIVEN.sub(lambda found: "..." if found[1] else "", complaint.partition(": ")[2])
        return "the schema " + whole.format(why=why.replace("Regex is empty", "no text fits its patterns"))
    if not unknown:
        return _reason(complaint.partition(": ")[0])
    given, read = _keywords(json.loads(text)), set(_keywords(_only_part(grammar)["json_schema"]))
    named = [path for path in given if path[-1] in unknown]
    path = next((one for one in named if one in read), next(iter(named), None))
    if begun == "patternProperty":
        why = f": {_reason(complaint)}"
    else:
        why = _FIXES.get(unknown[0] if path is None else str(path[-1]), ". Fix: leave it out")
    return f"{'a keyword' if path is None else told(path)} is not supported{why}"


def _keywords(schema: Any) -> list[Path]:
    """The places of all keywords in a schema."""
    return [(*path, key) for path, one in places(schema).items() if isinstance(one, Mapping) for key in one]


def _reason(complaint: str) -> str:
    """Shorten llguidance's complaint to what quotes nothing of the job."""
    lines = [line for line in complaint.splitlines() if line and not line.startswith((" ", "\t"))]
    lines = [_QUOTED.sub("...", line) for line in lines if not re.match(r"\d+ \|", line)]
    return "; ".join(lines)[:MAX_REASON_CHARS] or "cannot be read"


if __name__ == "__main__":
    answer_requests(lambda limits: judge_form)
