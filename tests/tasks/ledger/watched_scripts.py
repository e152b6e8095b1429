"""Scripts that note what they should not do.

They touch a key that their call has not declared, unless they say so. Or their first write takes memory, so
that a full Redis refuses them, though they bring nothing new.
"""

from functools import cache
from typing import Any

from llama_herd.tasks.ledger.script import Script

#: Where the notes are: <script> <command> <key>, or <script> begins with <command>.
NOTES = "undeclared"

#: Scripts that a full Redis refuses: they bring something new, or lead there what is well where it is.
#: CLAIM it refuses where ended jobs keep as much as they may; a note of DUE_FOR_SWEEP nobody misses.
REFUSED = {
    *("submit", "submit_many", "batch_create", "file_reserve", "file_add"),
    *("revive", "gather", "claim", "due_for_sweep"),
}

#: Stands before a script. `redis` is one that looks first: these commands take several keys, the others one.
_WATCH = """
local redis = (function(real)
  local is_declared, without = {}, {TIME = true, PUBLISH = true}
  local many = {DEL = true, UNLINK = true, EXISTS = true}
  local takes_memory = {%(writes)s} -- of commands that write
  local may_begin = %(may_begin)s
  for _, key in ipairs(KEYS) do is_declared[key] = true end
  local look
  look = function(command, ...)
    if command == 'MEMORY' then return look('USAGE', select(2, ...)) end
    if takes_memory[command] and not may_begin then
      real.call('SADD', '%(notes)s', '%(name)s begins with ' .. command)
    end
    if takes_memory[command] ~= nil then may_begin = true end
    for place = 1, (%(builds_keys)s or without[command]) and 0 or many[command] and select('#', ...) or 1 do
      local key = select(place, ...)
      if not is_declared[key] then real.call('SADD', '%(notes)s', '%(name)s ' .. command .. ' ' .. key) end
    end
  end
  return {
    call = function(...) look(...) return real.call(...) end,
    pcall = function(...) look(...) return real.pcall(...) end,
    error_reply = real.error_reply,
    status_reply = real.status_reply,
    sha1hex = real.sha1hex,
  }
end)(redis)
"""


def writes_of(redis: Any) -> str:
    """The commands of a server that write, each with whether it takes memory, as fields of a Lua table."""
    return ", ".join(
        f"{name.upper()} = {str('denyoom' in one['flags']).lower()}"
        for name, one in redis.command().items()
        if "write" in one["flags"] and name.isalpha()
    )


@cache
def watched(script: Script, writes: str) -> str:
    """The source of a script that is watched. `writes`: see `writes_of`."""
    given = {
        "name": script.name,
        "notes": NOTES,
        "writes": writes,
        "may_begin": str(script.name in REFUSED).lower(),
        "builds_keys": str(script.head.builds_keys).lower(),
    }
    return _WATCH % given + script.plain_source
