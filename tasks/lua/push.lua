-- Puts a job's message at the entry of its queue, under a delivery tag that no message had before:
-- <id>:<number of the push>:<time of the push>. SWEEP reads the time to see how far a queue is consumed.
local function push(job, id, now)
  local queue, envelope = unpack(redis.call('HMGET', job, 'queue', 'envelope'))
  local number = redis.call('HINCRBY', job, 'pushes', 1)
  local tag = string.format('%s:%d:%.0f', id, number, now)
  local first, last = string.find(envelope, '@tag@', 1, true)
  redis.call('LPUSH', own_queue(job, queue), string.sub(envelope, 1, first - 1) .. tag .. string.sub(envelope, last + 1))
end
