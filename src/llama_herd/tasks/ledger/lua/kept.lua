-- What is kept of ended jobs: `kept` counts the bytes of their records, streams and results, all together (`bytes`) and by
-- the hour by which they are gone, since keys expire in silence: `from` is the first hour that still counts. `limit`: how
-- many bytes there may be; workers write it. It goes with the last that counts, so that a tenant who comes no more leaves
-- none.
-- A spoilt key holds up no end, hence pcall.
-- needs: clock
local HOUR_MS, DAY_H, LONG_H, MOST_HOURS = 3600000, 24, 60 * 24, 1000

-- Where Redis does not tell what a key takes, as some services that host one.
local ASSUMED_BYTES = 2048

local function bytes_of(name)
  local bytes = redis.pcall('MEMORY', 'USAGE', name, 'SAMPLES', 0)
  return type(bytes) == 'table' and ASSUMED_BYTES or bytes or 0
end

-- The hour by which something is gone that lives so long. Of what lives for months the day, so that they are few.
local function last_hour(now, life_ms)
  local hour = math.ceil((now + life_ms) / HOUR_MS)
  return life_ms / HOUR_MS > LONG_H and math.ceil(hour / DAY_H) * DAY_H or hour
end

-- The first hour that counts, and the hours since then in which something has expired, with its bytes: some weeks at most.
-- Producers may write `from`: a loop from -inf, or from where one more is the same number, would never end.
local function expired_hours(key, now)
  local this_hour = math.floor(now / HOUR_MS)
  local from = tonumber(redis.call('HMGET', key.kept, 'from')[1])
  if not (from and from >= 0) then from = this_hour + 1 end
  local to, found = math.min(this_hour, from + MOST_HOURS), {}
  for hour = from, to do
    local bytes = tonumber(redis.call('HMGET', key.kept, hour)[1])
    if bytes then found[#found + 1] = {hour = hour, bytes = bytes} end
  end
  return to + 1, found
end

local function forget_expired(key, now)
  local from, hours = expired_hours(key, now)
  for _, one in ipairs(hours) do
    redis.call('HINCRBY', key.kept, 'bytes', string.format('%.0f', -one.bytes))
    redis.call('HDEL', key.kept, one.hour)
  end
  redis.call('HSET', key.kept, 'from', from)
end

local function count_kept(key, name, field, bytes, life_ms)
  local now = now_ms()
  local hour = last_hour(now, life_ms)
  redis.call('HSET', name, field, string.format('%.0f/%.0f', hour, bytes))
  redis.call('HINCRBY', key.kept, 'bytes', bytes)
  if redis.call('HINCRBY', key.kept, hour, bytes) == bytes then forget_expired(key, now) end
  local left_ms = hour * HOUR_MS - now
  if redis.call('PTTL', key.kept) < left_ms then redis.call('EXPIRE', key.kept, math.ceil(left_ms / 1000)) end
end

-- Counts a record and its stream, which live for so long from now on, and notes in the record what was counted.
local function note_kept(key, job, events, life_s)
  pcall(count_kept, key, job, 'kept', bytes_of(job) + bytes_of(events), 1000 * life_s)
end

-- Takes back what was counted of a job, as its record notes it.
local function forget_noted(key, noted)
  local hour, bytes = string.match(noted or '', '^(%d+)/(%d+)$')
  if hour and redis.pcall('HMGET', key.kept, hour)[1] then
    redis.pcall('HINCRBY', key.kept, 'bytes', -bytes)
    if redis.pcall('HINCRBY', key.kept, hour, -bytes) == 0 then redis.pcall('HDEL', key.kept, hour) end
  end
end

-- Counts the result of a job beside it, in place of one that was stored before.
local function note_kept_result(key)
  local life_ms = redis.call('PTTL', key.result)
  if life_ms <= 0 then return end
  forget_noted(key, redis.call('HMGET', key.job, 'kept_result')[1])
  pcall(count_kept, key, key.job, 'kept_result', bytes_of(key.result), life_ms)
end

-- Takes back all that was counted of a job that is deleted before its time.
local function forget_kept(key)
  for _, noted in ipairs(redis.call('HMGET', key.job, 'kept', 'kept_result')) do forget_noted(key, noted) end
end

-- Counts a record and its stream anew, whose life has changed.
local function recount_kept(key, life_ms)
  forget_noted(key, redis.call('HMGET', key.job, 'kept')[1])
  note_kept(key, key.job, key.events, life_ms / 1000)
end

-- The bytes that ended jobs keep, and how many they may; 0: no limit.
local function kept_and_limit(key, now)
  local counts = redis.call('HMGET', key.kept, 'bytes', 'limit')
  local bytes = tonumber(counts[1]) or 0
  local _, hours = expired_hours(key, now)
  for _, one in ipairs(hours) do bytes = bytes - one.bytes end
  return math.max(0, bytes), tonumber(counts[2]) or 0
end

-- Whether ended jobs keep less than they may; not where there is no limit.
local function may_keep_more(key, now)
  local is_read, bytes, limit = pcall(kept_and_limit, key, now)
  return is_read and bytes < limit
end

-- Returns {bytes, limit} if ended jobs keep as much as they may; nothing if not.
local function beyond_kept(key, now)
  local is_read, bytes, limit = pcall(kept_and_limit, key, now)
  if is_read and limit > 0 and bytes >= limit then return {bytes, limit} end
end
