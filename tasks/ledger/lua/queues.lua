-- QUEUES: the queues of the tenant in which jobs wait or run, or that workers have served.
-- KEYS: 1 waiting, 2 served, 3 leases
-- ARGV: 1 a queue that is counted in any case, 2 and 3 what a record's key has before and after the id, 4 most queues,
--       5 most running jobs to look at
-- Answers: now, then for each queue: name, messages, jobs, tokens, delayed and running jobs, jobs taken lately, in how
--       many ms, when the oldest job was due, when a worker last reported that it serves the queue; 0: unknown
-- The names of queues and records are built here, so this script needs a single Redis, not a cluster.
local waiting, served, leases = unpack(KEYS)
local before, after, max_queues, max_looks = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local now = now_ms()
local names, counts = {}, {}

local function note(queue)
  if counts[queue] or #names >= max_queues or not pcall(own_queue, waiting, queue) then return end
  names[#names + 1] = queue
  counts[queue] = {running = 0}
end

note(ARGV[1])
for _, queue in ipairs(redis.call('ZRANGE', served, 0, -1)) do note(queue) end
local fields = redis.call('HGETALL', waiting)
for place = 1, #fields, 2 do
  local queue, name = string.match(fields[place], '^(.*):(%l+)$')
  if queue then note(queue) end
  if queue and counts[queue] then counts[queue][name] = tonumber(fields[place + 1]) end
end
for _, id in ipairs(redis.call('ZRANGE', leases, 0, max_looks - 1)) do
  local queue = redis.pcall('HGET', before .. id .. after, 'queue')
  if type(queue) == 'string' then note(queue) end
  if counts[queue] then counts[queue].running = counts[queue].running + 1 end
end

-- When the job was due whose message is next in a list; 0 if none is found. Messages of jobs that have ended, and bare
-- ones, are passed over.
local function oldest_in(list)
  for place = -1, -32, -1 do
    local message = redis.call('LINDEX', list, place)
    if not message then break end
    local id = #message < 16384 and string.match(message, '"delivery_tag": ?"([%w._:-]+):%d+:%d+"')
    local record = id and redis.pcall('HMGET', before .. id .. after, 'state', 'due_ms') or {}
    if record[1] == 'queued' then return tonumber(record[2]) or 0 end
  end
  return 0
end

local function oldest_of(queue)
  local oldest = 0
  for _, lane in ipairs({'', '\006\022urgent', '\006\022low'}) do
    local due = oldest_in(queue .. lane)
    if due > 0 and (oldest == 0 or due < oldest) then oldest = due end
  end
  return oldest
end

-- A list of the queue may have been replaced by another type.
local function or_0(act, queue)
  local has_worked, number = pcall(act, queue)
  return has_worked and number or 0
end

local answer = {now}
for _, queue in ipairs(names) do
  local count = counts[queue]
  local jobs = count.jobs or 0
  answer[#answer + 1] = {
    queue, or_0(num_messages, queue), jobs, count.tokens or 0, count.delayed or 0, count.running,
    math.floor(count.taken or 0), count.since and now - count.since or 0, jobs > 0 and or_0(oldest_of, queue) or 0,
    math.floor(tonumber(redis.call('ZSCORE', served, queue) or 0))}
end
return answer
