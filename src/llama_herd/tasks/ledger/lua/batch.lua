-- A batch in the hands of the feeder that has claimed it under this epoch.
local FINAL = {completed = true, failed = true, expired = true, cancelled = true}

-- Returns its state if the feeder of this epoch still has it to run; nothing if not.
local function state_of_mine(batch, epoch)
  local state, current = unpack(redis.call('HMGET', batch, 'state', 'epoch'))
  if state and current == epoch and not FINAL[state] then return state end
end

local function enter(batch, state, now) redis.call('HSET', batch, 'state', state, state .. '_ms', now) end
