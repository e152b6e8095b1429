-- SETTLE: note that Celery has the job's result and its links are sent. Nothing is left to do for later messages. From then
-- on a job that was owed is kept for as long as it still was when it was first owed.
-- needs: kept
-- keys: job, events, owed, untold, kept, result (Celery's)
-- args: id, is_elsewhere (1: the result is in another Redis)
-- Answers: settled | purged (the result is to be deleted) | unknown (the record has expired, or is another job's)
redis.call('ZREM', key.owed, id)
redis.call('ZREM', key.untold, id)
local state, life_ms = unpack(redis.call('HMGET', key.job, 'state', 'life_ms'))
if not state or state == 'queued' or state == 'running' then return 'unknown' end
if life_ms then
  redis.call('PEXPIRE', key.job, life_ms)
  redis.call('PEXPIRE', key.events, life_ms)
  recount_kept(key, tonumber(life_ms))
end
redis.call('HDEL', key.job, 'settling', 'settling_until', 'settling_late', 'sent_links', 'life_ms')
if state == 'purged' then return 'purged' end
redis.call('HSET', key.job, 'settled', is_elsewhere == '1' and 'elsewhere' or 1)
if is_elsewhere ~= '1' then note_kept_result(key) end
return 'settled'
