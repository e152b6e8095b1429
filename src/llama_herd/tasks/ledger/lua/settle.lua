-- SETTLE: note that Celery has the job's result and its links are sent. Nothing is left to do for later messages.
-- KEYS: 1 job record
-- Answers: settled | purged | unknown (the record has expired)
local state = redis.call('HGET', KEYS[1], 'state')
if not state then return 'unknown' end
if state == 'purged' then return 'purged' end
redis.call('HSET', KEYS[1], 'settled', 1)
redis.call('HDEL', KEYS[1], 'settling', 'settling_until', 'settling_late')
return 'settled'
