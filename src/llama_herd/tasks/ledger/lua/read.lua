-- READ: a part of a job's events, for workers. In parts, since a long stream of one tenant must not fill the worker's
-- memory.
-- keys: job, events
-- args: start (where to begin, as XRANGE takes it), part_bytes# (after which the answer ends), most_bytes# (of one event)
-- list left_out: args field (of events that the answer leaves out, wherever they stand)
-- Answers: number of recorded tokens, where to read on ('': that was all), event, ...
--       an error if the stream contains what no worker writes: other fields, or an event that is too long
local foreign = redis.error_reply('ERR the events of this job are not what workers write. Fix: purge the job')

-- Entries that are read together, and bytes that each counts for in addition to its event.
local num_looks, entry_bytes = 16, 64

-- Steps through texts that are left out: more than those of any prompt that a worker takes.
local steps_left = 2 ^ 22

-- Returns the place behind a text of JSON; nothing if it has no end, or too much in it.
local function behind_text(event, at)
  repeat
    at, steps_left = string.find(event, '["\\]', at + 1), steps_left - 1
    if not at or steps_left < 0 then return end
    local is_escape = string.sub(event, at, at) == '\\'
    if is_escape then at = at + 1 end
  until not is_escape
  return at + 1
end

-- The same for a value: a number, a text, a list of numbers, or pieces: texts by the numbers that they stand for.
local function behind_value(event, at)
  local sign = string.sub(event, at, at)
  if sign == '"' then return behind_text(event, at) end
  if sign ~= '[' and sign ~= '{' then return (string.find(event, '[,}%s]', at)) end
  local _, last = string.find(event, '^%b[]', at)
  while sign == '{' and at and not last do
    at = string.find(event, '["}]', at)
    if at and string.sub(event, at, at) == '"' then at = behind_text(event, at) else last = at end
  end
  return last and last + 1
end

-- Returns an event without a field. No text contains the searched name: JSON escapes its quotes.
local function without(event, field)
  local first, last = string.find(event, '"' .. field .. '":', 1, true)
  local at = first and string.find(event, '%S', last + 1)
  local behind = at and behind_value(event, at)
  if not behind then return event end
  local before, rest = string.sub(event, 1, first - 1), string.sub(event, behind)
  if string.find(rest, '^%s*,') then return before .. string.gsub(rest, '^%s*,%s*', '', 1) end
  return string.gsub(before, ',%s*$', '', 1) .. rest
end

local function without_left_out(event)
  for _, field in ipairs(left_out) do event = without(event, field) end
  return event
end

local n = redis.pcall('HGET', key.job, 'n')
local from = start
local answer, num_bytes, entries = {type(n) == 'string' and tonumber(n) or 0, ''}, 0, nil
repeat
  entries = redis.pcall('XRANGE', key.events, from, '+', 'COUNT', num_looks)
  if entries.err then return entries end
  for _, entry in ipairs(entries) do
    local fields = entry[2]
    if fields[1] ~= 'e' or #fields ~= 2 then return foreign end
    if num_bytes >= part_bytes then
      answer[2] = from
      return answer
    end
    local event = without_left_out(fields[2])
    if #event > most_bytes then return foreign end
    num_bytes = num_bytes + #event + entry_bytes
    answer[#answer + 1] = event
    from = '(' .. entry[1]
  end
until #entries < num_looks
return answer
