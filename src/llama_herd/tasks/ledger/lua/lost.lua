-- Ends a job that still waits or runs by `pending` or `leases`, though its record is gone: Redis has evicted it, or
-- somebody has deleted it. Its events go on where they stop. The caller must have seen that there is no record.
-- needs: clock, end
local function end_lost(key, id, tail)
  local last = redis.call('XREVRANGE', key.events, '+', '-', 'COUNT', 1)[1]
  redis.call('ZREM', key.pending, id)  -- nobody knows for which queue it was counted
  redis.call('ZREM', key.delayed, id)
  redis.call('HSET', key.job, 'queue', '', 'tokens', 0, 'seq', last and string.match(last[1], '^%d+') or 0,
    'epoch', 0, 'n', 0, 'deaths', 0, 'attempts', 0, 'submitted_ms', now_ms(), 'due_ms', now_ms())
  write_end(key, id, 'failed', tail)
end
