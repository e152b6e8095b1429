-- Asks for the records that a list names, as `declare.lua` says. The call that follows has their keys.
-- `names`: what stands in the list; `before`, `after`: what a record's key has before and after the name.
local function ask_for(names, before, after)
  local answer = {'declare'}
  for place, name in ipairs(names) do answer[place + 1] = before .. name .. after end
  return answer
end

-- The name in the key of a record.
local function name_in(key, before, after) return string.sub(key, #before + 1, -#after - 1) end
