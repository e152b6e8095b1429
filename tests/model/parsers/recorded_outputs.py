"""Outputs of models, and what they mean, as engines that parse them have recorded them."""

from dataclasses import dataclass

HELLO = "Hello, world!\nWhat's up?"
SF = '{"city": "San Francisco", "state": "CA", "unit": "celsius"}'
VARIOUS = """{
    "string_field": "hello",
    "int_field": 42,
    "float_field": 3.14,
    "bool_field": true,
    "null_field": null,
    "array_field": ["a", "b", "c"],
    "object_field": {"nested": "value"},
    "empty_array": [],
    "empty_object": {}
  }"""
ESCAPED = r"""{
    "quoted": "He said \"hello\"",
    "path": "C:\\Users\\file.txt",
    "newline": "line1\nline2",
    "unicode": "emoji: 🎉"
  }"""
DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
DEEPSEEK_END = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
UNSURE = "I need to remember the correct syntax. It starts with <｜tool▁calls▁begin｜> and ends with"
COMMENTARY = "<|channel|>commentary to=functions."


@dataclass(frozen=True)
class Recorded:
    """`source`: the test file, page or model card where an output of this form stands."""

    source: str
    format: str
    text: str
    calls: tuple[tuple[str, str], ...] = ()
    content: str = ""
    reasoning: str = ""
    reasoning_format: str = ""
    begins_in_reasoning: bool = False


def _vllm(name: str) -> str:
    return f"vLLM tests/tool_parsers/test_{name}_tool_parser.py"


LLAMA_CPP = "llama.cpp tests/test-chat.cpp"
FN = "special_function"
ARG = '{"arg1": 1}'

RECORDED = (
    Recorded(
        _vllm("hermes"),
        "hermes",
        '<tool_call>\n{"name": "final_answer", "arguments": {"trigger": true}}\n</tool_call>',
        (("final_answer", '{"trigger": true}'),),
    ),
    Recorded(
        _vllm("hermes"),
        "hermes",
        '<tool_call>\n{"name": "final_answer", "arguments": {"trigger": true}}',
        (("final_answer", '{"trigger": true}'),),
    ),
    Recorded(
        _vllm("hermes"),
        "hermes",
        '<tool_call>\n{"name": "final_answer", "arguments": {"trigger": true}',
        content='<tool_call>\n{"name": "final_answer", "arguments": {"trigger": true}',
    ),
    Recorded(
        _vllm("hermes"),
        "hermes",
        '<tool_call>{"name": "get_current_temperature","arguments": {"location":"San Francisco, California, '
        'United States", "unit": "celsius"}}</tool_call>',
        (
            (
                "get_current_temperature",
                '{"location":"San Francisco, California, United States", "unit": "celsius"}',
            ),
        ),
    ),
    Recorded(
        _vllm("hermes"),
        "hermes",
        'Sure, let me check the weather.<tool_call>{"name": "get_weather", "arguments": {"city": "NYC"}}'
        "</tool_call>",
        (("get_weather", '{"city": "NYC"}'),),
        "Sure, let me check the weather.",
    ),
    Recorded(
        _vllm("hermes"),
        "hermes",
        '<tool_call>{"name": "search", "arguments": {"q": "cats"}}</tool_call>'
        '<tool_call>{"name": "search", "arguments": {"q": "dogs"}}</tool_call>',
        (("search", '{"q": "cats"}'), ("search", '{"q": "dogs"}')),
    ),
    Recorded(
        f"{_vllm('hermes')}, Granite 4",
        "hermes",
        '<tool_call>\n{"name": "get_db_config", "arguments": "{\\"param\\": \\"max_connections\\"}"}\n'
        "</tool_call>",
        (("get_db_config", '{"param": "max_connections"}'),),
    ),
    Recorded(
        "llguidance docs/toolcalls.md, Qwen 3",
        "hermes",
        '<tool_call>\n{"name": "add", "arguments": {"x": 123345432, "y": 4563464236}}\n</tool_call>\n'
        '<tool_call>\n{"name": "mul", "arguments": {"x": 874284, "y": 912429}}\n</tool_call>',
        (("add", '{"x": 123345432, "y": 4563464236}'), ("mul", '{"x": 874284, "y": 912429}')),
    ),
    Recorded(
        "Hermes 2 Pro model card",
        "hermes",
        '<tool_call>\n{"arguments": {"symbol": "TSLA"}, "name": "get_stock_fundamentals"}\n</tool_call>',
        (("get_stock_fundamentals", '{"symbol": "TSLA"}'),),
    ),
    Recorded(
        f"{LLAMA_CPP}, Hermes 2 Pro",
        "hermes",
        f'{HELLO}\n<tool_call>\n{{"name": "{FN}", "arguments": {ARG}}}\n</tool_call>',
        ((FN, ARG),),
        HELLO,
    ),
    Recorded(
        f"{LLAMA_CPP}, Qwen 3",
        "hermes",
        f'<think>I\'m\nthinking</think>\n<tool_call>\n{{"name": "{FN}", "arguments": {ARG}}}\n</tool_call>',
        ((FN, ARG),),
        reasoning="I'm\nthinking",
        reasoning_format="think",
    ),
    Recorded(
        _vllm("llama3_json"),
        "llama3",
        '{"name": "searchTool", "parameters": {"query": "test query", "limit": 10}}',
        (("searchTool", '{"query": "test query", "limit": 10}'),),
    ),
    Recorded(
        _vllm("llama3_json"),
        "llama3",
        '{"name": "searchTool", "arguments": {"query": "test"}}',
        (("searchTool", '{"query": "test"}'),),
    ),
    Recorded(
        _vllm("llama3_json"),
        "llama3",
        '{"name": "invalidTool", "parameters": {invalid json}',
        content='{"name": "invalidTool", "parameters": {invalid json}',
    ),
    Recorded(
        _vllm("llama3_json"),
        "llama3",
        '{"name": "searchTool", "parameters": {"query": "test1"}} ; '
        '{"name": "getOpenIncidentsTool", "parameters": {}} ; '
        '{"name": "searchTool", "parameters": {"query": "test2"}}',
        (
            ("searchTool", '{"query": "test1"}'),
            ("getOpenIncidentsTool", "{}"),
            ("searchTool", '{"query": "test2"}'),
        ),
    ),
    Recorded(
        _vllm("llama3_json"),
        "llama3",
        '{"name": "searchTool", "parameters": {"query": "test1"}}\n'
        '{"name": "getOpenIncidentsTool", "parameters": {}}',
        (("searchTool", '{"query": "test1"}'), ("getOpenIncidentsTool", "{}")),
    ),
    Recorded(
        _vllm("llama3_json"),
        "llama3",
        '{"name": "searchTool", "parameters": {"query": "test {value} [complex]",'
        '"nested": {"inner": "more {brackets}"}}}',
        (("searchTool", '{"query": "test {value} [complex]","nested": {"inner": "more {brackets}"}}'),),
    ),
    Recorded(
        _vllm("llama3_json"),
        "llama3",
        '{"name": "parserTool", "parameters": {"text": "He said \\"Hello {world}\\""}}',
        (("parserTool", '{"text": "He said \\"Hello {world}\\""}'),),
    ),
    Recorded(_vllm("llama3_json"), "llama3", '{"parameters": {}}', content='{"parameters": {}}'),
    Recorded(
        _vllm("llama3_json"),
        "llama3",
        '{"name": "searchTool"}',
        content='{"name": "searchTool"}',
    ),
    Recorded(
        _vllm("llama3_json"),
        "llama3",
        '{"name": "searchTool", "parameters": {"query": "test"}} I used {searchTool} for this.',
        (("searchTool", '{"query": "test"}'),),
        "I used {searchTool} for this.",
    ),
    Recorded(
        "Llama 3.1 prompt format",
        "llama3",
        '<|python_tag|>{"type": "function", "name": "trending_songs", "parameters": {"n": "10", '
        '"genre": "all"}}',
        (("trending_songs", '{"n": "10", "genre": "all"}'),),
    ),
    Recorded(
        "Llama 3.1 prompt format",
        "functionary_v3_1",
        '<function=trending_songs>{"n": 10}</function>',
        (("trending_songs", '{"n": 10}'),),
    ),
    Recorded(
        f"{LLAMA_CPP}, Functionary 3.1",
        "functionary_v3_1",
        f"{HELLO}<function={FN}>{ARG}</function>",
        ((FN, ARG),),
        HELLO,
    ),
    Recorded(f"{LLAMA_CPP}, Functionary 3.2", "functionary_v3_2", f"all\n{HELLO}", content=HELLO),
    Recorded(f"{LLAMA_CPP}, Functionary 3.2", "functionary_v3_2", f"{FN}\n{ARG}", ((FN, ARG),)),
    Recorded(
        f"{LLAMA_CPP}, Functionary 3.2",
        "functionary_v3_2",
        f"{FN}\n{ARG} \n                    ",
        ((FN, ARG),),
    ),
    Recorded(
        f"{LLAMA_CPP}, Functionary 3.2",
        "functionary_v3_2",
        f"all\n{HELLO}>>>{FN}\n{ARG}>>>{FN}\n{{}}",
        ((FN, ARG), (FN, "{}")),
        HELLO,
    ),
    Recorded(
        _vllm("mistral"),
        "mistral",
        '[TOOL_CALLS][{"name": "add", "arguments":{"a": 3.5, "b": 4}}]',
        (("add", '{"a": 3.5, "b": 4}'),),
    ),
    Recorded(
        _vllm("mistral"),
        "mistral",
        '[TOOL_CALLS]  [ {"name":"add" , "arguments" : {"a": 3, "b": 4} } ]',
        (("add", '{"a": 3, "b": 4}'),),
    ),
    Recorded(
        _vllm("mistral"),
        "mistral",
        '[TOOL_CALLS] [{"arguments":{"name": "John Doe"}, "name": "get_age"}]',
        (("get_age", '{"name": "John Doe"}'),),
    ),
    Recorded(
        _vllm("mistral"),
        "mistral",
        f'[TOOL_CALLS] [{{"name": "add", "arguments": {{"a": 3.5, "b": 4}}}}, '
        f'{{"name": "get_current_weather", "arguments":{SF}}}]',
        (("add", '{"a": 3.5, "b": 4}'), ("get_current_weather", SF)),
    ),
    Recorded(
        _vllm("mistral"),
        "mistral",
        'Hello[TOOL_CALLS] [{"name": "add", "arguments":{"a": 1, "b": 2}}]',
        (("add", '{"a": 1, "b": 2}'),),
        "Hello",
    ),
    Recorded(
        _vllm("mistral"),
        "mistral",
        f'[TOOL_CALLS] [{{"name": "get_current_weather", "arguments":{SF}}}]\nextra trailing data',
        (("get_current_weather", SF),),
        "extra trailing data",
    ),
    Recorded(
        _vllm("mistral"),
        "mistral",
        "[TOOL_CALLS] not json at all",
        content="[TOOL_CALLS] not json at all",
    ),
    Recorded(
        "Mistral 7B Instruct v0.3 chat template",
        "mistral",
        f'[TOOL_CALLS][{{"name": "{FN}", "arguments": {ARG}, "id": "123456789"}}]',
        ((FN, ARG),),
    ),
    Recorded(
        _vllm("mistral"),
        "mistral_v11",
        '[TOOL_CALLS]add{"a": 3.5, "b": 4}[TOOL_CALLS]multiply{"a": 3, "b": 6}',
        (("add", '{"a": 3.5, "b": 4}'), ("multiply", '{"a": 3, "b": 6}')),
    ),
    Recorded(
        _vllm("mistral"),
        "mistral_v11",
        'hi{hi[TOOL_CALLS]bash{"command": "print(\\"hello world!\\")\\nre.compile(r\'{}\')"}',
        (("bash", '{"command": "print(\\"hello world!\\")\\nre.compile(r\'{}\')"}'),),
        "hi{hi",
    ),
    Recorded(
        _vllm("mistral"),
        "mistral_v11",
        "[TOOL_CALLS]add",
        content="[TOOL_CALLS]add",
    ),
    Recorded(
        f"{LLAMA_CPP}, Mistral Small 3.2",
        "mistral_v11",
        f"[TOOL_CALLS]{FN}[CALL_ID]123456789[ARGS]{ARG}",
        ((FN, ARG),),
    ),
    Recorded(
        f"{LLAMA_CPP}, Ministral 3",
        "mistral_v11",
        f"[THINK]I'm\nthinking[/THINK][TOOL_CALLS]{FN}[ARGS]{ARG}[TOOL_CALLS]{FN}[ARGS]{{}}",
        ((FN, ARG), (FN, "{}")),
        reasoning="I'm\nthinking",
        reasoning_format="mistral",
    ),
    Recorded(
        f"{LLAMA_CPP}, Magistral",
        "mistral_v11",
        "[THINK]raisonnement[/THINK]Réponse",
        content="Réponse",
        reasoning="raisonnement",
        reasoning_format="mistral",
    ),
    Recorded(
        _vllm("phi4mini"),
        "phi4_mini",
        'functools[\n  {"name": "get_weather", "arguments": {"city": "Tokyo"}},\n'
        '  {"name": "get_time", "arguments": {"timezone": "Asia/Tokyo"}}\n]',
        (("get_weather", '{"city": "Tokyo"}'), ("get_time", '{"timezone": "Asia/Tokyo"}')),
    ),
    Recorded(
        _vllm("phi4mini"),
        "phi4_mini",
        f'functools[{{\n  "name": "test_function",\n  "arguments": {VARIOUS}\n}}]',
        (("test_function", VARIOUS),),
    ),
    Recorded(
        _vllm("phi4mini"),
        "phi4_mini",
        'Let me check the weather for you.\nfunctools[{"name": "get_weather", "arguments": '
        '{"city": "Tokyo"}}]\nWould you like to know more?',
        (("get_weather", '{"city": "Tokyo"}'),),
        "Let me check the weather for you.\nWould you like to know more?",
    ),
    Recorded(
        _vllm("phi4mini"),
        "phi4_mini",
        "functools[ This is just text ]",
        content="functools[ This is just text ]",
    ),
    Recorded(
        "llguidance docs/toolcalls.md, Phi-4-mini",
        "phi4_mini",
        '<|tool_call|>[{"name": "add", "arguments": {"x": 123345432, "y": 4563464236}}, '
        '{"name": "mul", "arguments": {"x": 874284, "y": 912429}}]<|/tool_call|>',
        (("add", '{"x": 123345432, "y": 4563464236}'), ("mul", '{"x": 874284, "y": 912429}')),
    ),
    Recorded(
        "llama.cpp template for Phi-4-mini",
        "phi4_mini",
        '<|tool_call|>{"name": "foo", "arguments": {"a": 1}}<|/tool_call|>',
        (("foo", '{"a": 1}'),),
    ),
    Recorded(
        f"{LLAMA_CPP}, Firefunction 2",
        "functools",
        f' functools[{{"name": "{FN}", "arguments": {ARG}}}]',
        ((FN, ARG),),
    ),
    Recorded(
        f"{_vllm('granite')}, Granite 3.0",
        "granite",
        '<|tool_call|> [{"name": "get_weather", "arguments": {"city": "Tokyo"}}]',
        (("get_weather", '{"city": "Tokyo"}'),),
    ),
    Recorded(
        f"{_vllm('granite')}, Granite 3.1",
        "granite",
        f'<tool_call> [{{\n  "name": "test_function",\n  "arguments": {ESCAPED}\n}}]',
        (("test_function", ESCAPED),),
    ),
    Recorded(
        _vllm("granite"),
        "granite",
        '<|tool_call|> [{"arguments": {"city": "Tokyo"}, "name": "get_weather"}, '
        '{"arguments": {"timezone": "Asia/Tokyo"}, "name": "get_time"}]',
        (("get_weather", '{"city": "Tokyo"}'), ("get_time", '{"timezone": "Asia/Tokyo"}')),
    ),
    Recorded(
        f"{LLAMA_CPP}, Granite 3.3",
        "granite",
        f"<think>I'm\nthinking</think><response>{HELLO}</response>",
        content=HELLO,
        reasoning="I'm\nthinking",
        reasoning_format="granite",
    ),
    Recorded(
        f"{LLAMA_CPP}, Granite 3.3",
        "granite",
        f'<think>I\'m\nthinking</think><|tool_call|>[{{"name": "{FN}", "arguments": {ARG}}}, {{',
        ((FN, ARG),),
        ", {",
        reasoning="I'm\nthinking",
        reasoning_format="granite",
    ),
    Recorded(
        "Granite 3.2 chat template",
        "granite",
        f"Here is my thought process:\nI'm\nthinking\nHere is my response:\n{HELLO}",
        content=HELLO,
        reasoning="I'm\nthinking",
        reasoning_format="granite_3_2",
    ),
    Recorded(
        _vllm("deepseekv3"),
        "deepseek_r1",
        f"Let me check the weather for you.{DEEPSEEK}function<｜tool▁sep｜>get_weather\n```json\n"
        f'{{"city": "Paris"}}\n```{DEEPSEEK_END}',
        (("get_weather", '{"city": "Paris"}'),),
        "Let me check the weather for you.",
    ),
    Recorded(
        _vllm("deepseekv3"),
        "deepseek_r1",
        f'{DEEPSEEK}function<｜tool▁sep｜>get_weather\n```json\n{{"city": "Tokyo", "unit": "celsius"}}\n```'
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search_hotels\n```json\n"
        f'{{"location": "Tokyo", "check_in": "2025-01-15"}}\n```{DEEPSEEK_END}',
        (
            ("get_weather", '{"city": "Tokyo", "unit": "celsius"}'),
            ("search_hotels", '{"location": "Tokyo", "check_in": "2025-01-15"}'),
        ),
    ),
    Recorded(
        f"{LLAMA_CPP}, DeepSeek R1",
        "deepseek_r1",
        f"I'm\nthinking</think>\n\n{DEEPSEEK}function<｜tool▁sep｜>{FN}\n```json\n{ARG}\n```{DEEPSEEK_END}",
        ((FN, ARG),),
        reasoning="I'm\nthinking",
        reasoning_format="think",
        begins_in_reasoning=True,
    ),
    Recorded(
        f"{LLAMA_CPP}, DeepSeek R1",
        "deepseek_r1",
        UNSURE,
        reasoning=UNSURE,
        reasoning_format="think",
        begins_in_reasoning=True,
    ),
    Recorded(
        f"{LLAMA_CPP}, DeepSeek R1",
        "deepseek_r1",
        f"<think>I'm\nthinking</think>{HELLO}",
        content=HELLO,
        reasoning="I'm\nthinking",
        reasoning_format="think",
        begins_in_reasoning=True,
    ),
    Recorded(
        _vllm("deepseekv31"),
        "deepseek_v3_1",
        f'some prefix text{DEEPSEEK}foo<｜tool▁sep｜>{{"x":1}}<｜tool▁call▁end｜><｜tool▁call▁begin｜>bar'
        f'<｜tool▁sep｜>{{"y":2}}{DEEPSEEK_END} some suffix text',
        (("foo", '{"x":1}'), ("bar", '{"y":2}')),
        "some prefix text some suffix text",
    ),
    Recorded(
        _vllm("deepseekv31"),
        "deepseek_v3_1",
        "Let me look that up.<｜tool▁calls▁begin｜>get_weather",
        content="Let me look that up.<｜tool▁calls▁begin｜>get_weather",
    ),
    Recorded(
        f"{LLAMA_CPP}, Nemotron Nano 2",
        "nemotron",
        f'<think>I\'m\nthinking</think><TOOLCALL>[{{"name": "{FN}", "arguments": {ARG}}}]</TOOLCALL>',
        ((FN, ARG),),
        reasoning="I'm\nthinking",
        reasoning_format="think",
    ),
    Recorded(
        f"{LLAMA_CPP}, gpt-oss",
        "harmony",
        f"<|channel|>analysis<|message|>I'm\nthinking<|end|><|start|>assistant<|channel|>final<|message|>{HELLO}",
        content=HELLO,
        reasoning="I'm\nthinking",
        reasoning_format="harmony",
    ),
    Recorded(
        f"{LLAMA_CPP}, gpt-oss",
        "harmony",
        f"<|channel|>analysis<|message|>I'm\nthinking<|end|><|start|>assistant{COMMENTARY}{FN} "
        f"<|constrain|>json<|message|>{ARG}",
        ((FN, ARG),),
        reasoning="I'm\nthinking",
        reasoning_format="harmony",
    ),
    Recorded(
        f"{LLAMA_CPP}, gpt-oss",
        "harmony",
        f"{COMMENTARY}{FN}<|message|>{ARG}",
        ((FN, ARG),),
    ),
    Recorded(
        "gpt-oss chat template",
        "harmony",
        f"<|start|>assistant to=functions.{FN}<|channel|>commentary json<|message|>{ARG}<|call|>",
        ((FN, ARG),),
    ),
)
#: Every tool that is called there, and those whose calls are not whole.
NAMES = frozenset({"invalidTool", "get_weather"} | {name for one in RECORDED for name, _ in one.calls})
