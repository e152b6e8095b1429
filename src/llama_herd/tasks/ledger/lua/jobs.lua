-- JOBS: those of these jobs that are in a list of waiting or of running jobs.
-- needs: declare, row
-- keys: list (pending, delayed, leases or pending:<list>)
-- args: max_finds# (jobs in the answer), before, after (what a record's key has before and after the id), queue (theirs;
--       empty: any), due_ms# (due at this time at the latest; empty: any)
-- more records: (of the jobs)
-- kept: for gateways
-- Answers: how many of the jobs it has looked at, then for each that it has found its row (see row.lua)
local function look(job)
  local id = name_in(job, before, after)
  if not redis.call('ZSCORE', key.list, id) then return end
  local row, record = row_of(id, job)
  if not row or queue ~= '' and record.queue ~= queue then return end
  if due_ms and (tonumber(record.due_ms) or 0) > due_ms then return end
  return row
end

return found_rows(records, max_finds, look)
