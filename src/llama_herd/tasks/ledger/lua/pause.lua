-- PAUSE: let workers take no more jobs of a queue, or one worker none at all; or let them take jobs again.
-- needs: clock, pauses
-- keys: pauses (`paused` for a queue, `drained` for a worker)
-- args: name, for_ms# (how long; 0: it is over; none: until it is), channel (on which workers hear that they should look)
-- kept: for gateways
-- Answers when the pause ends that is there now, or that was there until now: ms | 0 (there was none)
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', key.pauses, '-inf', now)
local ends = paused_until(key.pauses, name, now)
if for_ms == 0 then
  redis.call('ZREM', key.pauses, name)
else
  ends = for_ms and now + for_ms or FOR_GOOD
  redis.call('ZADD', key.pauses, string.format('%.0f', ends), name)
end
redis.call('PUBLISH', channel, '')
return ends
