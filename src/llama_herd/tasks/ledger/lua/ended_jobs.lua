-- ENDED_JOBS: some of the jobs that have ended, the newest first.
-- needs: clock, declare, row
-- keys: list (ended or failed)
-- args: last (the job behind which to begin; empty: none), place# (to begin at, if none), max_looks#, max_finds# (jobs to
--       look at, and in the answer), before, after (what a record's key has before and after the id), queue (theirs; empty:
--       any), state (theirs; empty: any), since_ms# (ended since then)
-- list notes: args name, value (of their metadata)
-- more records: (of the jobs to look at)
-- kept: for gateways
-- Answers: now, place to go on at (-1: the list is over), then for each job its row (see row.lua). Without records among
--       the keys: {declare, their keys}. unknown: `last` is not in the list
if last ~= '' then
  local rank = redis.call('ZREVRANK', key.list, last)
  if not rank then return 'unknown' end
  place = rank + 1
end
local rows = {}

local function has_notes(metadata)
  if #notes == 0 then return true end
  local is_read, found = pcall(cjson.decode, metadata or '')
  if not is_read or type(found) ~= 'table' then return false end
  for _, note in ipairs(notes) do
    if found[note.name] ~= note.value then return false end
  end
  return true
end

local function look(job)
  local row, record = row_of(name_in(job, before, after), job)
  if not row or not record.ended_ms or queue ~= '' and record.queue ~= queue then return end
  if state ~= '' and record.state ~= state or (tonumber(record.ended_ms) or 0) < since_ms then return end
  if has_notes(record.metadata) then rows[#rows + 1] = row end
end

local ids = #records == 0 and redis.call('ZREVRANGE', key.list, place, place + max_looks - 1) or {}
if #ids > 0 then return ask_for(ids, before, after) end
for number, job in ipairs(records) do
  if #rows >= max_finds then return {now_ms(), place + number - 1, unpack(rows)} end
  look(job)
end
return {now_ms(), #records < max_looks and -1 or place + #records, unpack(rows)}
