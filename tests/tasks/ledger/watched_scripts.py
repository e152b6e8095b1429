"""Scripts that note each key which they touch and which their call has not declared."""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

import llama_herd.tasks.ledger
from llama_herd.tasks.ledger.script import Script
from llama_herd.worker.broker import message_lot

#: Where the notes are: <script> <command> <key>.
NOTES = "undeclared"

#: Stands before a script. `redis` is one that looks first: these commands take several keys, the others one.
_WATCH = """
local redis = (function(real)
  local is_declared, without = {}, {TIME = true, PUBLISH = true}
  local many = {DEL = true, UNLINK = true, EXISTS = true}
  for _, key in ipairs(KEYS) do is_declared[key] = true end
  local function look(command, ...)
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
    return _WATCH % (NOTES, script.files[-1]) + script.plain_source


def scripts() -> Iterator[Script]:
    """All scripts of ours."""
    names = [one.name for one in iter_modules(llama_herd.tasks.ledger.__path__)]
    modules = [import_module(f"llama_herd.tasks.ledger.{name}") for name in names]
    found = {
        one for module in (*modules, message_lot) for one in vars(module).values() if isinstance(one, Script)
    }
    yield from sorted(found, key=lambda script: script.files[-1])
