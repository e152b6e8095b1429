-- SETTLE: note that Celery has the job's result and its links are sent. Nothing is left to do for later messages.
-- needs: kept
-- keys: job, result (Celery's), kept
-- Answers: settled | purged | unknown (the record has expired, or is another job's)
local state = redis.call('HGET', key.job, 'state')
if not state or state == 'queued' or state == 'running' then return 'unknown' end
if state == 'purged' then return 'purged' end
redis.call('HSET', key.job, 'settled', 1)
redis.call('HDEL', key.job, 'settling', 'settling_until', 'settling_late')
note_kept_result(key)
return 'settled'
