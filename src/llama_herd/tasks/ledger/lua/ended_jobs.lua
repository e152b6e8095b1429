-- ENDED_JOBS: those of these jobs that have ended.
-- needs: declare, row
-- args: max_finds# (jobs in the answer), before, after (what a record's key has before and after the id), queue (theirs;
--       empty: any), state (theirs; empty: any), since_ms# (ended since then)
-- list notes: args name, value (of their metadata)
-- more records: (of the jobs)
-- kept: for gateways
-- Answers: how many of the jobs it has looked at, then for each that it has found its row (see row.lua)
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
  if not row or not record.ended_ms or record.state == 'purged' or queue ~= '' and record.queue ~= queue then return end
  if state ~= '' and record.state ~= state or (tonumber(record.ended_ms) or 0) < since_ms then return end
  return has_notes(record.metadata) and row or nil
end

return found_rows(records, max_finds, look)
