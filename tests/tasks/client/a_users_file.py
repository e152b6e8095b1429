"""What a user of the client writes; test_types.py has it checked without our settings of mypy."""

import warnings

from llama_herd import (
    AsyncClient,
    BatchRow,
    ChatMessage,
    Client,
    End,
    Event,
    GenerationError,
    HerdError,
    QueueFull,
    Result,
    SamplingFields,
    SamplingParams,
    Settings,
    Started,
    Token,
    UnservedModel,
)
from llama_herd.tasks import GenerationJob


def tell(client: Client) -> str:
    params = SamplingParams(max_tokens=80, temperature=0.8, seed=7, stop=("\n\n",), logit_bias={3: 1.5})
    job_id: str = client.submit(prompt="Once upon a time", sampling=params, priority=3, metadata={"k": "v"})
    text = ""
    for event in client.stream(job_id, timeout_s=60):
        if event.type == "token":
            text += event.text
    result: Result = client.result(job_id)
    return text + result.text + result.finish_reason


def tell_whole(client: Client) -> list[str]:
    job = GenerationJob(prompt="Once upon a time", sampling=SamplingParams(n=2), flush_ms=500)
    chat = GenerationJob(messages=(ChatMessage(role="user", content="Who are you?"),), model="tales")
    ids = [client.submit(job, idempotency_key="order-17"), client.submit(chat)]
    turns = [{"role": "user", "content": "Who are you?"}]
    ids.append(client.submit(messages=turns, sampling={"max_tokens": 5, "stop": ["x"]}, not_before=5))
    return ids


def tell_all_alike(client: Client, prompts: list[str]) -> list[str]:
    alike: SamplingFields = {"max_tokens": 80, "stop": ["\n\n"]}
    ids = [client.submit(prompt=prompt, sampling=alike | {"seed": 7}) for prompt in prompts]
    return [client.result(job_id, timeout=60).text for job_id in ids]


def look(client: Client, job_id: str) -> tuple[str, float | None]:
    """What a service may ask of queues and jobs."""
    warnings.simplefilter("error", UnservedModel)
    try:
        client.submit(prompt="x", max_tokens=5, timeout_s=30)
    except QueueFull as full:
        return full.queue, full.retry_after_s
    last: Event = list(client.stream(job_id))[-1]
    states = [job.state for job in client.jobs(model="tales", state="unserved", older_s=60)]
    oldest_s = [queue.oldest_s for queue in client.status().queues if not queue.is_served]
    return client.job(job_id).state + last.type + "".join(states), oldest_s[0]


def wait_for(client: Client, job_id: str) -> tuple[str, list[int]]:
    text, places = "", list[int]()
    for event in client.watch(job_id, timeout=60):
        if event.type == "queued":
            places.append(event.position)
        elif event.type == "token":
            text += event.text
    return text, places


def facts(client: Client, job_id: str) -> tuple[int, float, str | None]:
    tokens, total_s, worker = 0, 0.0, None
    for event in client.stream(job_id):
        match event:
            case Started():
                worker = event.worker
            case Token():
                tokens += len(event.ids)
            case End():
                total_s = event.timings.total_s or 0.0 if event.timings else 0.0
    return tokens, total_s, worker


async def tell_async() -> int | None:
    async with AsyncClient(settings=Settings(tenant="acme", redis_url="redis://127.0.0.1:6379/0")) as client:
        job_id = await client.submit(prompt="Once upon a time", sampling={"temperature": 0.8})
        async for event in client.stream(job_id):
            if event.type == "token":
                print(event.text, event.logprobs)
        async for seen in client.watch(job_id, timeout=60):
            print(seen.type)
        result = await client.result(job_id, timeout=60)
        return result.usage.total_tokens if result.usage else None


def many(client: Client) -> None:
    for item in client.batch(
        [GenerationJob(prompt="x"), {"prompt": "y"}, BatchRow(7, GenerationJob(prompt="z"))]
    ):
        try:
            print(item.index, item.result.raise_for_error().text if item.result else item.failure)
        except (GenerationError, HerdError) as error:
            print(error)


def made_by_hand() -> list[Token | End]:
    token = Token(seq=1, job="a", epoch=1, i=0, ids=(1,), text="x")
    end = End(seq=2, job="a", epoch=1, finish_reason="stop", n=1, attempts=1)
    return [token, end]
