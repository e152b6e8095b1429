-- DUE_FOR_SWEEP: which tenants are to be swept now. For one without anything to sweep the time is noted, and that is all.
-- KEYS: for each tenant: sweep, then 7 keys of what a sweep looks at
-- ARGV: 1 shortest time between sweeps (ms)
-- Answers, one for each tenant: 1 (SWEEP it) | 0
local now = now_ms()

local function is_due(first)
  local last = tonumber(redis.call('HGET', KEYS[first], 'last') or 0)
  if now - last < tonumber(ARGV[1]) and now >= last then return 0 end
  if redis.call('EXISTS', unpack(KEYS, first + 1, first + 7)) > 0 then return 1 end
  redis.call('HSET', KEYS[first], 'last', now)
  return 0
end

local answers = {}
for first = 1, #KEYS, 8 do
  local is_read, answer = pcall(is_due, first)
  answers[#answers + 1] = is_read and answer or 1 -- its sweep will say what is wrong
end
return answers
