-- Some keys are known only once a record or a list is read. If the caller has not declared them, a script answers
-- {'declare', key, ...} before it has written anything. Then the caller calls again, with these keys behind the others.
-- `answer`: the same for keys before this one, if any is missing.
local function undeclared(key, answer)
  for place = #KEYS, 1, -1 do
    if KEYS[place] == key then return answer end
  end
  answer = answer or {'declare'}
  answer[#answer + 1] = key
  return answer
end

-- Asks for the records that a list names. `before`, `after`: what a record's key has before and after the name.
local function ask_for(names, before, after)
  local answer = {'declare'}
  for place, name in ipairs(names) do answer[place + 1] = before .. name .. after end
  return answer
end

-- The name in the key of a record.
local function name_in(key, before, after) return string.sub(key, #before + 1, -#after - 1) end
