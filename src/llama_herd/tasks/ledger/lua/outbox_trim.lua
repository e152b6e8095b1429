-- Keeps an outbox within `most` messages, and as many dead ones, for `dead_s` each. What is too much is given up: what
-- was put off for long, since it has failed most often, or else the oldest.
local TRIMMED, LONG_MS = 2000, 120000

local function trim_outbox(leases, now, most, dead_s)
  local keys = outbox_beside(leases)
  local outbox, entries, dead = keys.waiting, keys.entries, keys.dead
  local num = math.min(redis.call('ZCARD', outbox) - most, TRIMMED)
  if num > 0 then
    local has_failed = redis.call('ZCOUNT', outbox, now + LONG_MS, '+inf') >= num
    local given_up = has_failed and redis.call('ZREVRANGE', outbox, 0, num - 1) or redis.call('ZRANGE', outbox, 0, num - 1)
    for _, message in ipairs(given_up) do
      redis.call('ZREM', outbox, message)
      redis.call('ZADD', dead, now, message)
    end
  end
  local function forget(messages)
    for _, message in ipairs(messages) do
      redis.call('ZREM', dead, message)
      redis.call('HDEL', entries, message)
    end
  end
  forget(redis.call('ZRANGEBYSCORE', dead, '-inf', now - 1000 * dead_s, 'LIMIT', 0, TRIMMED))
  local num_dead = math.min(redis.call('ZCARD', dead) - most, TRIMMED)
  if num_dead > 0 then forget(redis.call('ZRANGE', dead, 0, num_dead - 1)) end
end
