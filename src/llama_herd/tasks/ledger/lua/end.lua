-- Writes the final event of a job that no worker will end, and closes its record.
-- `tail` is the rest of the event's JSON. The new epoch fences a worker that still believes it owns the job.
-- XADD comes first: if it fails, nothing has been written.
-- Celery is told of it by whoever meets the job's message next; if nobody does soon, by any worker (OWED).
-- needs: waiting, close, full
local MEETS_SOON_MS = 2000 -- for so long its message may still be met

local function write_end(key, id, state, tail)
  local epoch, seq, n, attempts, worker, queue, lane, tokens = unpack(
    redis.call('HMGET', key.job, 'epoch', 'seq', 'n', 'attempts', 'worker', 'queue', 'lane', 'tokens'))
  epoch, seq = epoch + 1, seq + 1
  local event = string.format(
    '{"v":1,"seq":%d,"job":"%s","epoch":%d,"type":"end","n":%d,"attempts":%d,"worker":%s,%s',
    seq, id, epoch, n, attempts, worker and cjson.encode(worker) or 'null', tail)
  go_on_when_full(key.job)
  redis.call('XADD', key.events, string.format('%d-0', seq), 'e', event)
  redis.call('HSET', key.job, 'state', state, 'epoch', epoch, 'seq', seq, 'lease', 0)
  redis.call('HDEL', key.job, 'owner', 'retry_ms')
  local was_delayed = stop_waiting(key, id, queue, lane, tokens)
  close(key, key.job, key.events, id, state, event)
  redis.pcall('ZADD', key.untold, now_ms() + (was_delayed and 0 or MEETS_SOON_MS), id) -- a spoilt key holds up no end
  redis.call('PUBLISH', key.channel, event)
end
