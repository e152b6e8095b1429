"""Run many prompts, however many there are. Needs a worker: `herd worker --with-redis`."""

from llama_herd import Client

ANIMALS = ("fox", "badger", "hedgehog", "rabbit")

jobs = (
    {"prompt": f"Once upon a time, a brave {ANIMALS[n % 4]}", "sampling": {"max_tokens": 40, "seed": n}}
    for n in range(20)
)

with Client() as client:
    for item in client.batch(jobs, in_order=True):
        if item.result and not item.failure:
            print(item.index, item.result.text.strip())
        else:
            print(item.index, "failed:", item.failure)
