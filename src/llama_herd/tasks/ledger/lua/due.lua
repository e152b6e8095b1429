-- DUE: members of a list whose time has come, the oldest first.
-- KEYS: 1 the list
-- ARGV: 1 most of them, 2 the latest that a time may lie ahead (ms): a later one was written before the clock was put
--       back, and counts as come ('': any)
-- Answers: member, ...
local now = now_ms()
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
if ARGV[2] ~= '' then
  local beyond = string.format('(%.0f', now + ARGV[2])
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], beyond, '+inf', 'LIMIT', 0, ARGV[1])) do
    due[#due + 1] = member
  end
end
return due
