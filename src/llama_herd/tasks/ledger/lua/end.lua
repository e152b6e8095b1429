-- Writes the final event of a job that no worker will end, and closes its record.
-- `tail` is the rest of the event's JSON. The new epoch fences a worker that still believes it owns the job.
-- XADD comes first: if it fails, nothing has been written.
-- Returns whether the job was delayed: then it has no message by which a worker would come to tell Celery of its end.
-- needs: waiting, close
local function write_end(key, id, state, tail)
  local epoch, seq, n, starts, worker, queue, lane, tokens = unpack(
    redis.call('HMGET', key.job, 'epoch', 'seq', 'n', 'starts', 'worker', 'queue', 'lane', 'tokens'))
  epoch, seq = epoch + 1, seq + 1
  local event = string.format(
    '{"v":1,"seq":%d,"job":"%s","epoch":%d,"type":"end","n":%d,"attempts":%d,"worker":%s,%s',
    seq, id, epoch, n, starts, worker and cjson.encode(worker) or 'null', tail)
  redis.call('XADD', key.events, string.format('%d-0', seq), 'e', event)
  redis.call('HSET', key.job, 'state', state, 'epoch', epoch, 'seq', seq, 'lease', 0)
  redis.call('HDEL', key.job, 'owner')
  local was_delayed = stop_waiting(key, id, queue, lane, tokens)
  close(key, key.job, key.events, id, state, event)
  redis.call('PUBLISH', key.channel, event)
  return was_delayed
end
