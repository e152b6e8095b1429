-- Returns `queue` if it belongs to the same tenant as `key`; else raises an error. A user who can write a tenant's keys
-- could otherwise make others write to keys outside that tenant.
local function own_queue(key, queue)
  local tenant = string.match(key, '^herd:([%w_-]+):')
  local prefix = tenant == 'default' and 'herd.' or 'herd.' .. tenant .. ':'
  if string.sub(queue, 1, #prefix) ~= prefix or string.find(queue, ':', #prefix + 1, true) then
    error('the queue does not belong to the tenant')
  end
  return queue
end

-- Returns the number of messages in a queue's lists. Their names: see llama_herd.tasks.priority.
local function num_messages(queue)
  local num = redis.call('LLEN', queue)
  for _, lane in ipairs({'urgent', '3', '6', '9', 'low'}) do
    num = num + redis.call('LLEN', queue .. '\006\022' .. lane)
  end
  return num
end
