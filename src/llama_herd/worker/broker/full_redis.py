"""What Celery writes of a job that has ended goes on where Redis is full: its result, links and chord.

Redis refuses there a first write that takes memory. A write that takes none lets others follow, as in
`full.lua`.
"""

from collections.abc import Sequence
from typing import Any

from redis import Redis

#: Takes no memory, whatever the key holds.
FREE_WRITE = "redis.pcall('HDEL', KEYS[1], '')\n"

#: Runs commands, each as the number of its parts and these.
_COMMANDS = f"""{FREE_WRITE}
local replies, place = {{}}, 1
while place < #ARGV do
  local last = place + tonumber(ARGV[place])
  replies[#replies + 1] = redis.call(unpack(ARGV, place + 1, last))
  place = last + 1
end
return replies
"""


def write_on(redis: Redis, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Run commands that a full Redis has refused, all at once, and return what it answers to each."""
    parts = [part for command in commands for part in (len(command), *command)]
    replies: list[Any] = redis.register_script(_COMMANDS)([command[1] for command in commands], parts)
    return replies
