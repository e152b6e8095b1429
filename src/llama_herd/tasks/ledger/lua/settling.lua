-- SETTLING: ask to be the one who tells Celery how a job has ended, which also sends its links.
-- needs: clock, full
-- keys: job
-- args: caller, for_ms# (how long it may take until it must ask again)
-- Answers: {yours, keep_s or '', 1 if its links are sent} | {busy, ms left} | {settled} (or the record is another job's) |
--       {purged} | {unknown} (the record has expired)
-- After that time another one gets `busy` once more, for the same time again: a live worker asks again meanwhile. An
-- outage of Redis holds up both alike. A time further away than that was written before the clock was put back.
local state, settled, by, until_ms, is_late, sent_links, keep_s = unpack(redis.call('HMGET', key.job,
  'state', 'settled', 'settling', 'settling_until', 'settling_late', 'sent_links', 'keep_s'))
if not state then return {'unknown'} end
if state == 'purged' then return {'purged'} end
if settled or state == 'queued' or state == 'running' then return {'settled'} end

local now = now_ms()
go_on_when_full(key.job)
if by and by ~= caller then
  local left = tonumber(until_ms) - now
  if left > for_ms then redis.call('HSET', key.job, 'settling_until', now + for_ms) end
  if left > 0 then return {'busy', math.min(left, for_ms)} end
  if not is_late then
    redis.call('HSET', key.job, 'settling_until', now + for_ms, 'settling_late', 1)
    return {'busy', for_ms}
  end
end
redis.call('HSET', key.job, 'settling', caller, 'settling_until', now + for_ms)
if is_late then redis.call('HDEL', key.job, 'settling_late') end
return {'yours', keep_s or '', sent_links or ''}
