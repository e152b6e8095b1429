-- QUEUES: the queues of the tenant in which jobs wait or run, or that workers served lately, and how much is dead or owed.
-- needs: clock, queue, strays, kept, pauses, tag
-- keys: waiting, served, leases, dead, quarantine, delayed, owed, kept, paused
-- args: before, after (what a record's key has before and after the id),
--       max_queues# (those that were served last come first, then those with the most jobs),
--       max_looks# (running jobs to look at), lately_ms# (what is meant by lately)
-- list wanted: args queue (that is counted in any case)
-- builds keys: the names of lists and records, so this script needs a single Redis, not a cluster
-- kept: for gateways
-- Answers: now, dead letters, poisoned jobs, owed results, bytes that ended jobs keep and how many they may, then for each
--       queue: name, waiting jobs and their tokens, those of them that
--       are delayed and their tokens, jobs that the next sweep will bring back and their tokens, running jobs, jobs taken
--       lately, in how many ms, when a worker last reported that it serves the queue, then for each lane (plain, urgent,
--       low): messages, when the oldest job was due; 0: unknown; at last the messages in stray lists, which count as plain,
--       and when the pause of the queue ends; 0: there is none
local now = now_ms()
local names, is_named, counts = {}, {}, {}

local function name(queue)
  if is_named[queue] or #names >= max_queues or not pcall(own_queue, key.waiting, queue) then return end
  names[#names + 1], is_named[queue] = queue, true
  counts[queue] = counts[queue] or {jobs = 0, running = 0}
end

local fields, waits = redis.call('HGETALL', key.waiting), {}
for place = 1, #fields, 2 do
  local queue, count = string.match(fields[place], '^(.*):(%l+)$')
  if queue and not counts[queue] then
    counts[queue], waits[#waits + 1] = {jobs = 0, running = 0}, queue
  end
  local number = tonumber(fields[place + 1])
  if queue then counts[queue][count] = number == number and number or 0 end
end
table.sort(waits, function(one, two)
  if counts[one].jobs == counts[two].jobs then return one < two end
  return counts[one].jobs > counts[two].jobs
end)

for _, queue in ipairs(wanted) do name(queue) end
local paused = redis.pcall('ZRANGEBYSCORE', key.paused, string.format('(%.0f', now), '+inf', 'LIMIT', 0, max_queues)
for _, queue in ipairs(paused) do name(queue) end
local served_lately = redis.call('ZRANGEBYSCORE', key.served, now - lately_ms, '+inf')
for place = #served_lately, 1, -1 do name(served_lately[place]) end
for _, queue in ipairs(waits) do name(queue) end
for _, id in ipairs(max_looks > 0 and redis.call('ZRANGE', key.leases, 0, max_looks - 1) or {}) do
  local queue = redis.pcall('HGET', before .. id .. after, 'queue')
  if type(queue) == 'string' then name(queue) end
  if is_named[queue] then counts[queue].running = counts[queue].running + 1 end
end

-- Delayed jobs whose time has come, and running ones whose lease is over. While workers are up a sweep takes them within
-- a second; while none is up they wait for one, and nothing else tells of them.
local MAX_LEFT = 100
local function note_left(index, state)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, MAX_LEFT)) do
    local record = redis.pcall('HMGET', before .. id .. after, 'state', 'queue', 'tokens')
    if record[1] == state and record[2] then name(record[2]) end
    local count = record[1] == state and counts[record[2]]
    if count then
      count.left, count.lefttokens = (count.left or 0) + 1, (count.lefttokens or 0) + (tonumber(record[3]) or 0)
    end
  end
end
note_left(key.delayed, 'queued')
note_left(key.leases, 'running')

-- When the job was due whose message is next in a list; 0 if none is found. Messages of jobs that have ended, and bare
-- ones, are passed over.
local function oldest_in(list)
  for place = -1, -32, -1 do
    local message = redis.call('LINDEX', list, place)
    if not message then break end
    local id = read_tag(message)
    local record = id and redis.pcall('HMGET', before .. id .. after, 'state', 'due_ms', 'retry_ms') or {}
    if record[1] == 'queued' then return tonumber(record[3] or record[2]) or 0 end
  end
  return 0
end

-- Messages in some lists of a queue, and when the oldest job was due. A list may have been replaced by another type.
local function look_at(queue, lists)
  local messages, oldest = 0, 0
  for _, list in ipairs(lists) do
    local num = redis.pcall('LLEN', queue .. list)
    if type(num) == 'number' and num > 0 then
      local due = oldest_in(queue .. list)
      if due > 0 and (oldest == 0 or due < oldest) then oldest = due end
      messages = messages + num
    end
  end
  return messages, oldest
end

-- Celery's own lanes, for messages with a priority in Celery's sense, count as plain.
local function plain_lists(queue)
  local lists = {unpack(LANES, 3)}
  for _, sep in ipairs(separators_of(queue)) do
    for number = 1, 9 do lists[#lists + 1] = sep .. number end
  end
  return lists
end

local function num_stray(queue, lists)
  local num = 0
  for place = #LANES - 1, #lists do
    local found = redis.pcall('LLEN', queue .. lists[place])
    num = num + (type(found) == 'number' and found or 0)
  end
  return num
end

local answer = {now, redis.call('XLEN', key.dead), redis.call('ZCOUNT', key.quarantine, '-inf', '+inf'),
  redis.call('ZCOUNT', key.owed, '-inf', '+inf'), kept_and_limit(key, now)}
for _, queue in ipairs(names) do
  local count = counts[queue]
  local lists = plain_lists(queue)
  local plain, plain_due = look_at(queue, lists)
  local urgent, urgent_due = look_at(queue, {'\006\022urgent'})
  local low, low_due = look_at(queue, {'\006\022low'})
  answer[#answer + 1] = {
    queue, count.jobs, count.tokens or 0, count.delayed or 0, count.delayedtokens or 0,
    count.left or 0, count.lefttokens or 0, count.running,
    math.floor(count.taken or 0), count.since and now - count.since or 0,
    math.floor(tonumber(redis.call('ZSCORE', key.served, queue) or 0)),
    plain, plain_due, urgent, urgent_due, low, low_due, num_stray(queue, lists),
    paused_until(key.paused, queue, now)}
end
return answer
