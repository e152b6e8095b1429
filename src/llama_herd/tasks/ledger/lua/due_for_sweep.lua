-- DUE_FOR_SWEEP: which tenants are to be swept now. For one without anything to sweep the time is noted, and that is all.
-- needs: clock
-- args: between_ms# (shortest time between sweeps)
-- list tenants: keys sweep, pending, delayed, leases, waiting, dead, quarantine, outbox, outbox_dead
-- Answers, one for each tenant: 1 (SWEEP it) | 0
local now = now_ms()

-- Of a tenant whom no worker serves any more no note is left: the next sweep begins as after a gap.
local LIFE_S, HOUR_MS = 86400, 3600000

local function is_due(of)
  local last = tonumber(redis.call('HGET', of.sweep, 'last') or 0)
  if now - last < between_ms and now >= last then return 0 end
  local num = redis.call('EXISTS', of.pending, of.delayed, of.leases, of.waiting, of.dead, of.quarantine, of.outbox,
    of.outbox_dead)
  if num > 0 then return 1 end
  redis.call('HSET', of.sweep, 'last', now)
  if math.floor(last / HOUR_MS) < math.floor(now / HOUR_MS) then redis.call('EXPIRE', of.sweep, LIFE_S) end
  return 0
end

local answers = {}
for place, tenant in ipairs(tenants) do
  local is_read, answer = pcall(is_due, tenant)
  answers[place] = is_read and answer or 1 -- its sweep will say what is wrong
end
return answers
