-- The end of a list from which messages are taken. Messages are in the list in the order of their times.
-- needs: push, tag
local fronts = {}

-- Returns the time of the message that is taken next; for an empty list: now. Messages without a time are
-- skipped.
local function front_ms(list, now)
  if not fronts[list] then
    fronts[list] = now
    for place = -1, -32, -1 do
      local message = redis.call('LINDEX', list, place)
      if not message then break end
      local _, time = read_tag(message)
      if time then
        fronts[list] = tonumber(time)
        break
      end
    end
  end
  return fronts[list]
end

-- Pushes the message of a job that has waited before, so that it is taken next. Its tag gets the time of the message
-- that was next, so that messages behind it do not look overtaken. Returns that time.
local function push_first(job, id, list, now)
  push(job, id, front_ms(list, now), 'RPUSH')
  return front_ms(list, now)
end
