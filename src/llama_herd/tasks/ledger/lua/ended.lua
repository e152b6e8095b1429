-- The jobs that ended last, by the time of their end: `ended` lists all, `failed` those that failed. The newest MOST of each
-- are listed, but no rows of batches. A list goes with the last of its jobs, so that a tenant who comes no more leaves none.
-- A spoilt list holds up no end, hence pcall.
-- needs: batch_row
local MOST = 10000

local function list_one(list, id, now, life_s)
  redis.call('ZADD', list, now, id)
  redis.call('ZREMRANGEBYRANK', list, 0, -MOST - 1)
  if redis.call('PTTL', list) < 1000 * life_s then redis.call('EXPIRE', list, life_s) end
end

local function list_ended(key, id, state, now, life_s)
  if is_batch_row(id) then return end
  pcall(list_one, key.ended, id, now, life_s)
  if state == 'failed' then pcall(list_one, key.failed, id, now, life_s) end
end

local function unlist_ended(key, id)
  redis.pcall('ZREM', key.ended, id)
  redis.pcall('ZREM', key.failed, id)
end
