-- DUE: members of a list whose time has come, the oldest first.
-- needs: clock
-- keys: list
-- args: most, farthest_ms# (the latest that a time may lie ahead: a later one was written before the clock was put back,
--       and counts as come; empty: any)
-- kept: for gateways
-- Answers: member, ...
local now = now_ms()
local due = redis.call('ZRANGEBYSCORE', key.list, '-inf', now, 'LIMIT', 0, most)
if farthest_ms then
  local beyond = string.format('(%.0f', now + farthest_ms)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key.list, beyond, '+inf', 'LIMIT', 0, most)) do
    due[#due + 1] = member
  end
end
return due
