-- The jobs that ended last, by the time of their end: `ended` lists all, `failed` those that failed. The newest MOST of each
-- are listed, but no rows of batches. A spoilt list holds up no end, hence pcall.
-- needs: batch_row
local MOST = 10000

local function list_one(list, id, now)
  redis.call('ZADD', list, now, id)
  redis.call('ZREMRANGEBYRANK', list, 0, -MOST - 1)
end

local function list_ended(key, id, state, now)
  if is_batch_row(id) then return end
  pcall(list_one, key.ended, id, now)
  if state == 'failed' then pcall(list_one, key.failed, id, now) end
end

local function unlist_ended(key, id)
  redis.pcall('ZREM', key.ended, id)
  redis.pcall('ZREM', key.failed, id)
end
