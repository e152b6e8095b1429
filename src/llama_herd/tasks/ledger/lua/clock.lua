-- Unix milliseconds by the clock of Redis. Leases, deadlines and sweeps use no other clock.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
