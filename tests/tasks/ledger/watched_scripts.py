"""Scripts that note each key which they touch and which their call has not declared."""

from llama_herd.tasks.ledger.script import Script

#: Where the notes are: <script> <command> <key>.
NOTES = "undeclared"

#: Stands before a script. `redis` is one that looks first: these commands take several keys, the others one.
_WATCH = """
local redis = (function(real)
  local is_declared, without = {}, {TIME = true, PUBLISH = true}
  local many = {DEL = true, UNLINK = true, EXISTS = true}
  for _, key in ipairs(KEYS) do is_declared[key] = true end
  local look
  look = function(command, ...)
    if command == 'MEMORY' then return look('USAGE', select(2, ...)) end
    for place = 1, without[command] and 0 or many[command] and select('#', ...) or 1 do
      local key = select(place, ...)
      if not is_declared[key] then real.call('SADD', '%s', '%s ' .. command .. ' ' .. key) end
    end
  end
  return {
    call = function(...) look(...) return real.call(...) end,
    pcall = function(...) look(...) return real.pcall(...) end,
    error_reply = real.error_reply,
  }
end)(redis)
"""


def watched(script: Script) -> str:
    """The source of a script that is watched."""
    return _WATCH % (NOTES, script.name) + script.plain_source
