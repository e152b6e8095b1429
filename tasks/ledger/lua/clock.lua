-- Unix milliseconds by the clock of Redis, the only one that leases, deadlines and sweeps go by.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
