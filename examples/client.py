"""Submit one job and read its tokens as they come. Needs a worker: `herd worker --with-redis`."""

from llama_herd import Client

with Client() as client:
    job_id = client.submit(
        prompt="Once upon a time",
        sampling={"max_tokens": 80, "temperature": 0.8, "seed": 7},
    )
    for event in client.stream(job_id):
        if event.type == "token":
            print(event.text, end="", flush=True)
    print()
    result = client.result(job_id)  # again, now or within the hour, by anybody who knows the id
    print(result.finish_reason, result.usage)
