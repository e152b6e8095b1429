-- What lists of jobs tell of each: its id, then these fields of its record.
local ROW = {'state', 'queue', 'worker', 'n', 'attempts', 'submitted_ms', 'due_ms', 'retries', 'preemptions',
  'deadline_ms', 'preempted_n', 'retries_left', 'retry_ms', 'ended_ms', 'finish_reason', 'error', 'metadata'}

-- Returns the row, and its fields by their names; nothing if there is no record.
local function row_of(id, job)
  local values = redis.pcall('HMGET', job, unpack(ROW))
  if not values[1] then return end
  local row, record = {id}, {}
  for place, name in ipairs(ROW) do row[place + 1], record[name] = values[place], values[place] end
  return row, record
end

-- Looks at records until so many rows are found. `look`: a record's row; nothing to leave it out.
-- Returns how many it has looked at, then the rows.
local function found_rows(records, max_finds, look)
  local rows = {}
  for number, job in ipairs(records) do
    if #rows >= max_finds then return {number - 1, unpack(rows)} end
    rows[#rows + 1] = look(job)
  end
  return {#records, unpack(rows)}
end
