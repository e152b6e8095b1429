-- The consuming end of a list, and how far it is consumed: messages lie there in the order of their times.
local fronts = {}

-- The time of the message that is taken next; an empty list is consumed up to now. Messages that came without our
-- client tell no time and are passed over; long ones are never ours.
local function front_ms(list, now)
  if not fronts[list] then
    fronts[list] = now
    for place = -1, -32, -1 do
      local message = redis.call('LINDEX', list, place)
      if not message then break end
      local time = #message < 16384 and string.match(message, '"delivery_tag": ?"[%w._:-]+:%d+:(%d+)"')
      if time then
        fronts[list] = tonumber(time)
        break
      end
    end
  end
  return fronts[list]
end

-- Pushes the message of a job that has waited before, so that it is taken next; returns the time it goes under: that of
-- the message that was next, lest those behind look overtaken.
local function push_first(job, id, list, now)
  push(job, id, front_ms(list, now), 'RPUSH')
  return front_ms(list, now)
end
