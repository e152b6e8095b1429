-- SETTLE: store the job's result for Celery and announce it, as Celery does, and note that this is done and its links are
-- sent. Nothing is left to do for later messages. From then on a job that was owed is kept for as long as it still was when
-- it was first owed.
-- needs: kept, full
-- keys: job, events, owed, untold, kept, result (Celery's)
-- args: id, is_elsewhere (1: the result is in another Redis), value (the result; empty: none, or it is stored), life_s#
--   (of the result; 0: for ever)
-- Answers: settled | purged (a result that was stored before is to be deleted) | unknown (the record has expired, or is
-- another job's, which gets no result)
local state, life_ms, is_settled = unpack(redis.call('HMGET', key.job, 'state', 'life_ms', 'settled'))
local is_others = state == 'queued' or state == 'running'
go_on_when_full(key.job)
if value ~= '' and not (is_others or is_settled or state == 'purged') then
  redis.call('SET', key.result, value, unpack(life_s > 0 and {'EX', life_s} or {}))
  redis.call('PUBLISH', key.result, value)
end
redis.call('ZREM', key.owed, id)
redis.call('ZREM', key.untold, id)
if not state or is_others then return 'unknown' end
if life_ms then
  redis.call('PEXPIRE', key.job, life_ms)
  redis.call('PEXPIRE', key.events, life_ms)
  recount_kept(key, tonumber(life_ms))
end
redis.call('HDEL', key.job, 'settling', 'settling_until', 'settling_late', 'sent_links', 'life_ms')
if state == 'purged' then return 'purged' end
redis.call('HSET', key.job, 'settled', is_elsewhere == '1' and 'elsewhere' or 1)
note_kept_result(key)
return 'settled'
