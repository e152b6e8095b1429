"""A tiny model whose template knows tools and reasoning, and how to make it say what it is told.

Its weights are random. A form with one choice makes it write any text.
"""

from pathlib import Path
from typing import Any

from tests.tiny import tiny_vocabulary, write_tiny_gguf

#: `enable_thinking` has the prompt end within reasoning; else it has ended there.
TEMPLATE = """{%- for turn in messages -%}
<{{ turn.role }}>{{ turn.reasoning_content or "" }}{{ turn.content or "" }}
{%- for call in turn.tool_calls or () -%}
{%- set function = call.function -%}
<tool_call>{"name": "{{ function.name }}", "arguments": {{ function.arguments | tojson }}}</tool_call>
{%- endfor %}
{%- endfor %}
{%- if tools %}<tools>{{ tools | tojson }}</tools>{% endif -%}
<assistant><think>{% if not enable_thinking %}</think>{% endif %}"""

#: Reasoning, text, and two calls of the tools below.
SCRIPT = (
    '<think>I should look</think>So: <tool_call>\n{"name": "look", "arguments": {"at": "herd"}}\n'
    '</tool_call>\n<tool_call>\n{"name": "count", "arguments": {}}\n</tool_call>'
)
LOOK: dict[str, Any] = {
    "type": "object",
    "properties": {"at": {"enum": ["herd", "llama"]}},
    "required": ["at"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "look", "parameters": LOOK}},
    {"type": "function", "function": {"name": "count", "parameters": NOTHING}},
]
TURNS = [{"role": "user", "content": "What is there?"}]


def write_tool_model(path: Path) -> Path:
    """Write it; it has room for the tools of a prompt, of which most bytes are tokens."""
    return write_tiny_gguf(path, chat_template=TEMPLATE, context_length=2048)


def scripted(text: str = SCRIPT) -> dict[str, Any]:
    """Fields of a job or a request that make the model write this text, rather than a call by the grammar."""
    vocabulary = [piece.text for piece in tiny_vocabulary()]
    biased = [vocabulary.index(name) for name in ("h", "<0x68>", "S", "<0x53>") if name in vocabulary]
    return {
        "structured_outputs": {"choice": [text]},
        "sampling": {"logit_bias": dict.fromkeys(biased, 100.0), "max_tokens": 400, "seed": 3},
    }
