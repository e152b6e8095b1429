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

-- Returns the reply of a command on a list of a queue, a number. Raises its error; that of a key of another type names it,
-- which `complaint.py` explains.
local function checked_num(reply, list)
  if type(reply) == 'number' then return reply end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply.err) end
  error('WRONGTYPE ' .. list .. ' holds ' .. (redis.pcall('TYPE', list).ok or '') .. ';')
end

-- What follows a queue's name in the names of its lists: see llama_herd.tasks.protocol.priority. Celery's own, those with a
-- number, come last.
local LANES = {'\006\022urgent', '\006\022low', ''}
for number = 1, 9 do LANES[#LANES + 1] = '\006\022' .. number end
