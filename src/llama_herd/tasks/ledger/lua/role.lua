-- ROLE: be the one who does something, for a while. It is a hash, so that nobody needs a right to strings for it.
-- needs: clock, full
-- keys: role
-- args: caller, for_ms# (0: no more)
-- kept: for gateways
-- Answers: 1 if it is the caller's, 0 if it is another's
local now = now_ms()
local holder, until_ms = unpack(redis.call('HMGET', key.role, 'holder', 'until_ms'))
-- A time that is further away than a turn takes was written before the clock was put back.
local left_ms = (tonumber(until_ms) or 0) - now
if holder and holder ~= caller and left_ms > 0 and (for_ms == 0 or left_ms <= for_ms) then return 0 end
if for_ms == 0 then
  redis.call('DEL', key.role)
else
  go_on_when_full(key.role)
  redis.call('HSET', key.role, 'holder', caller, 'until_ms', now + for_ms)
end
return 1
