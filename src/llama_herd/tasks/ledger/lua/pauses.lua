-- Pauses: `paused` has the queues of which workers take no jobs, `drained` the workers that take none; the score is when
-- that ends.
local FOR_GOOD = 2 ^ 53 - 1

-- When the pause of a name ends; 0: there is none. Whoever spoils the key pauses nothing, hence pcall.
local function paused_until(pauses, name, now)
  local ends = redis.pcall('ZSCORE', pauses, name)
  ends = type(ends) == 'string' and tonumber(ends) or 0
  return ends > now and ends or 0
end
