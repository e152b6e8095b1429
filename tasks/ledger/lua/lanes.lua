-- LANES: what waits in the tenant, by queue and lane, and how much is dead.
-- KEYS: 1 waiting, 2 dead letters, 3 quarantine
-- ARGV: 1 a queue that is counted in any case, 2 most queues; those with the most jobs come first
-- Answers: dead letters, poisoned jobs, then for each queue: name, estimated tokens, delayed jobs, then for each lane
--          (plain, urgent, low): messages, for how long the one that is taken next has waited (ms)
-- The names of the lists are built here, so this script needs a single Redis, not a cluster.
local now = now_ms()
local counts, names = {[ARGV[1]] = {jobs = math.huge}}, {ARGV[1]}

local fields = redis.call('HGETALL', KEYS[1])
for place = 1, #fields, 2 do
  local queue, name = string.match(fields[place], '^(.*):(%l+)$')
  if queue and not counts[queue] and pcall(own_queue, KEYS[1], queue) then
    counts[queue], names[#names + 1] = {jobs = 0}, queue
  end
  if queue and counts[queue] and not (name == 'jobs' and queue == ARGV[1]) then
    counts[queue][name] = tonumber(fields[place + 1]) or 0
  end
end
table.sort(names, function(one, two)
  if counts[one].jobs == counts[two].jobs then return one < two end
  return counts[one].jobs > counts[two].jobs
end)

-- A list may have been replaced by a key of another type.
local function look_at(list)
  local num = redis.pcall('LLEN', list)
  if type(num) ~= 'number' or num == 0 then return 0, 0 end
  return num, math.max(0, now - front_ms(list, now))
end

-- Celery's own lanes, for messages with a priority in Celery's sense, count as plain.
local function plain(queue)
  local num, wait = look_at(queue)
  for _, lane in ipairs({'3', '6', '9'}) do
    local more, longer = look_at(queue .. '\006\022' .. lane)
    num, wait = num + more, math.max(wait, longer)
  end
  return num, wait
end

local answer = {redis.call('XLEN', KEYS[2]), redis.call('ZCOUNT', KEYS[3], '-inf', '+inf')}
for place = 1, math.min(#names, tonumber(ARGV[2])) do
  local queue = names[place]
  local normal, normal_ms = plain(queue)
  local urgent, urgent_ms = look_at(queue .. '\006\022urgent')
  local low, low_ms = look_at(queue .. '\006\022low')
  answer[#answer + 1] = {queue, counts[queue].tokens or 0, counts[queue].delayed or 0,
    normal, normal_ms, urgent, urgent_ms, low, low_ms}
end
return answer
