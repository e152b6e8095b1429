-- Messages at the end of a list whose jobs are over, and of which nobody has to meet the message: Celery has been told, or
-- is to be told by OWED. A worker would take them away, but nobody may serve the queue. A bare message, which carries its
-- job, has Celery's own tag.
-- needs: tag
local function is_stale(key, message, before, after)
  local id = read_tag(message)
  if not id then return false end
  local state, settled = unpack(redis.call('HMGET', before .. id .. after, 'state', 'settled'))
  if not state then
    return not (redis.call('ZSCORE', key.pending, id) or redis.call('ZSCORE', key.leases, id))
  elseif state == 'queued' or state == 'running' then
    return false
  end
  return settled or state == 'purged' or redis.call('ZSCORE', key.untold, id) or redis.call('ZSCORE', key.owed, id)
end

local MOST_STALE = 1000 -- that are dropped at once

-- Drops them, up to the first one that stays.
local function drop_stale(key, list, before, after)
  for _ = 1, MOST_STALE do
    local message = redis.call('LINDEX', list, -1)
    if not message or not is_stale(key, message, before, after) then return end
    redis.call('RPOP', list)
  end
end
