-- Puts a job's message into a list: by LPUSH, so that it is taken last, or by another command. Its delivery tag is new:
-- <id>:<number of the push>:<time>. The time tells its place in the list; see front.lua.
-- needs: queue
local function put(list, envelope, id, number, time, command)
  local tag = string.format('%s:%d:%.0f', id, number, time)
  local first, last = string.find(envelope, '@tag@', 1, true)
  redis.call(command or 'LPUSH', list, string.sub(envelope, 1, first - 1) .. tag .. string.sub(envelope, last + 1))
end

-- Puts the message of a job that has a record into its list, as `put` does.
local function push(job, id, time, command)
  local queue, lane, envelope = unpack(redis.call('HMGET', job, 'queue', 'lane', 'envelope'))
  local list = own_queue(job, queue .. (lane or ''))
  put(list, envelope, id, redis.call('HINCRBY', job, 'pushes', 1), time, command)
end
