-- Puts a job's message at the entry of its list, under a delivery tag that no message had before:
-- <id>:<number of the push>:<time of the push>. SWEEP reads the time to see how far a list is consumed.
local function push(job, id, now)
  local queue, lane, envelope = unpack(redis.call('HMGET', job, 'queue', 'lane', 'envelope'))
  local number = redis.call('HINCRBY', job, 'pushes', 1)
  local tag = string.format('%s:%d:%.0f', id, number, now)
  local first, last = string.find(envelope, '@tag@', 1, true)
  local list = own_queue(job, queue .. (lane or ''))
  redis.call('LPUSH', list, string.sub(envelope, 1, first - 1) .. tag .. string.sub(envelope, last + 1))
end
