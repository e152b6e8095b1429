-- READ: a part of a job's events, for workers. In parts, since a long stream of one tenant must not fill the worker's
-- memory.
-- KEYS: 1 job record, 2 event stream
-- ARGV: 1 where to begin, as XRANGE takes it, 2 bytes after which the answer ends, 3 most bytes of one event,
--       4 '1': with scores
-- Answers: number of recorded tokens, where to read on ('': that was all), event, ...
--       an error if the stream contains what no worker writes: other fields, or an event that is too long
local job, events, from = KEYS[1], KEYS[2], ARGV[1]
local part_bytes, most_bytes, with_scores = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local foreign = redis.error_reply('ERR the events of this job are not what workers write. Fix: purge the job')

-- Entries that are read together, and bytes that each counts for in addition to its event.
local num_looks, entry_bytes = 16, 64

-- Returns an event without its scores or the prompt that it tells of, which come last. No text contains the searched
-- names: JSON escapes its quotes.
local function head(event)
  if #event > most_bytes then event = string.sub(event, 1, most_bytes + 1) end
  for _, name in ipairs({',"logprobs":', ',"prompt_logprobs":', ',"prompt_ids":'}) do
    local at = string.find(event, name, 1, true)
    if at then return string.sub(event, 1, at - 1) .. '}' end
  end
  return event
end

local n = redis.pcall('HGET', job, 'n')
local answer, num_bytes, entries = {type(n) == 'string' and tonumber(n) or 0, ''}, 0, nil
repeat
  entries = redis.pcall('XRANGE', events, from, '+', 'COUNT', num_looks)
  if entries.err then return entries end
  for _, entry in ipairs(entries) do
    local fields = entry[2]
    if fields[1] ~= 'e' or #fields ~= 2 then return foreign end
    if num_bytes >= part_bytes then
      answer[2] = from
      return answer
    end
    local event = with_scores and fields[2] or head(fields[2])
    if #event > most_bytes then return foreign end
    num_bytes = num_bytes + #event + entry_bytes
    answer[#answer + 1] = event
    from = '(' .. entry[1]
  end
until #entries < num_looks
return answer
