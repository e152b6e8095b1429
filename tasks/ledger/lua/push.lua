-- Puts a job's message at the entry of its list, or by another command, under a delivery tag that no message had before:
-- <id>:<number of the push>:<time of its place in the list, that of the push unless it goes first>.
local function push(job, id, time, command)
  local queue, lane, envelope = unpack(redis.call('HMGET', job, 'queue', 'lane', 'envelope'))
  local number = redis.call('HINCRBY', job, 'pushes', 1)
  local tag = string.format('%s:%d:%.0f', id, number, time)
  local first, last = string.find(envelope, '@tag@', 1, true)
  local list = own_queue(job, queue .. (lane or ''))
  redis.call(command or 'LPUSH', list, string.sub(envelope, 1, first - 1) .. tag .. string.sub(envelope, last + 1))
end
