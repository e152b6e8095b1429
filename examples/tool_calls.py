"""A model that may call a function of yours: it asks, we run it, it answers. Needs a worker:

export HERD_MODEL_NAME=qwen
herd worker --model qwen2.5-1.5b-instruct.gguf
python examples/tool_calls.py
"""

import json
from typing import Any

from llama_herd import Client

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def get_weather(city: str) -> dict[str, Any]:
    return {"city": city, "degrees": {"Oslo": -3, "Lima": 19}[city]}


messages: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
with Client() as client:
    asked = client.submit(
        messages=messages, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False
    )
    result = client.result(asked)
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.loads(call.arguments)},
        }
        for call in result.tool_calls or ()
    ]
    messages.append({"role": "assistant", "content": result.answer, "tool_calls": calls})
    for call in calls:
        found = get_weather(**call["function"]["arguments"])
        print("called:", found)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(found)})
    for event in client.stream(client.submit(messages=messages, tools=[WEATHER], tool_choice="none")):
        if event.type == "token":
            print(event.text if event.content is None else event.content, end="", flush=True)
    print()
