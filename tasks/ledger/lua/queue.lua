-- Returns `queue` if it is one of the tenant that `key` belongs to. Whoever can write to a tenant's keys must not be
-- able to have anything but its queues written to.
local function own_queue(key, queue)
  local tenant = string.match(key, '^herd:([%w_-]+):')
  local prefix = tenant == 'default' and 'herd.' or 'herd.' .. tenant .. ':'
  if string.sub(queue, 1, #prefix) ~= prefix or string.find(queue, ':', #prefix + 1, true) then
    error('this is no queue of its tenant')
  end
  return queue
end

-- How many messages are in a queue's lists. What is behind its name in theirs: llama_herd.tasks.priority.
local function num_messages(queue)
  local num = redis.call('LLEN', queue)
  for _, lane in ipairs({'urgent', '3', '6', '9', 'low'}) do
    num = num + redis.call('LLEN', queue .. '\006\022' .. lane)
  end
  return num
end
