-- SETTLE: Celery has the job's result, and its links are sent: what comes of its messages later has nothing left to do.
-- KEYS: 1 job record
-- Answers: settled | purged | unknown (its time is over)
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return 'unknown' end
if state == 'purged' then return 'purged' end
redis.call('HSET', KEYS[1], 'settled', 1)
redis.call('HDEL', KEYS[1], 'settling', 'settling_until', 'settling_late')
return 'settled'
