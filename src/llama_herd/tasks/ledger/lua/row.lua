-- What lists of jobs tell of each: its id, then these fields of its record.
local ROW = {'state', 'queue', 'worker', 'n', 'starts', 'submitted_ms', 'due_ms', 'retries', 'preemptions',
  'deadline_ms', 'preempted_n', 'retries_left', 'retry_ms', 'ended_ms', 'finish_reason', 'error', 'metadata'}

-- Returns the row, and its fields by their names; nothing if there is no record.
local function row_of(id, job)
  local values = redis.pcall('HMGET', job, unpack(ROW))
  if not values[1] then return end
  local row, record = {id}, {}
  for place, name in ipairs(ROW) do row[place + 1], record[name] = values[place], values[place] end
  return row, record
end
