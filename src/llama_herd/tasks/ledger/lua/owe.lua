-- OWE: note that Celery could not be told how a job ended, since the Redis of its results is away. Record and events
-- stay for `life_s#`, or as long as they are kept anyway if that is longer.
-- needs: clock, kept, full
-- keys: job, events, owed, untold, kept
-- args: id, in_ms# (in how long it is to be told), life_s#, sent_links (1: they need not be sent again)
local settled, left_ms = redis.call('HGET', key.job, 'settled'), redis.call('PTTL', key.job)
if settled then return end
go_on_when_full(key.job)
if left_ms >= 0 then
  redis.call('HSETNX', key.job, 'life_ms', left_ms)
  local life_ms = math.max(left_ms, 1000 * life_s)
  redis.call('PEXPIRE', key.job, life_ms)
  redis.call('PEXPIRE', key.events, life_ms)
  recount_kept(key, life_ms)
  redis.call('HDEL', key.job, 'settling', 'settling_until', 'settling_late')
  if sent_links == '1' then redis.call('HSET', key.job, 'sent_links', 1) end
end
redis.call('ZREM', key.untold, id)
redis.call('ZADD', key.owed, now_ms() + in_ms, id)
