"""Watch a job by bare SUBSCRIBE: `python examples/subscribe.py JOB_ID`, started before the job is submitted.

A channel forgets. Who comes late reads the job's stream instead, as `herd watch` and `Client.stream` do:
`XRANGE herd:default:{JOB_ID}:events - +`, until an hour after the job's end.
"""

import json
import os
import sys

from redis import Redis

url = os.environ.get("HERD_REDIS_URL", "redis://127.0.0.1:6379/0")
with Redis.from_url(url).pubsub(ignore_subscribe_messages=True) as channel:
    channel.subscribe(f"herd:default:tokens:{sys.argv[1]}")
    for message in channel.listen():
        event = json.loads(message["data"])
        print(event["seq"], event["type"], event.get("text", ""))
        if event["type"] == "end":
            break
