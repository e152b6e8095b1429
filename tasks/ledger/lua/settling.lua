-- SETTLING: who tells Celery how a job has ended, which sends its links?
-- KEYS: 1 job record
-- ARGV: 1 who asks, 2 for how long it has the job (ms) unless it asks again
-- Answers: {yours} | {busy, ms left} | {settled} | {purged} | {unknown} (its time is over)
-- Nobody takes it from another at the first look after that time: who lives says so within the same time again. An
-- outage of Redis holds up both alike.
local state, settled, by, until_ms, is_late = unpack(redis.call('HMGET', KEYS[1],
  'state', 'settled', 'settling', 'settling_until', 'settling_late'))
if not state then return {'unknown'} end
if state == 'purged' then return {'purged'} end
if settled then return {'settled'} end

local now, for_ms = now_ms(), tonumber(ARGV[2])
if by and by ~= ARGV[1] then
  local left = tonumber(until_ms) - now
  if left > 0 then return {'busy', left} end
  if not is_late then
    redis.call('HSET', KEYS[1], 'settling_until', now + for_ms, 'settling_late', 1)
    return {'busy', for_ms}
  end
end
redis.call('HSET', KEYS[1], 'settling', ARGV[1], 'settling_until', now + for_ms)
if is_late then redis.call('HDEL', KEYS[1], 'settling_late') end
return {'yours'}
