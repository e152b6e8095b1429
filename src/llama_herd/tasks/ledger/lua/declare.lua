-- Some keys are known only once a record is read. If the caller has not declared them, a script answers
-- {'declare', key, ...} before it has written anything. Then the caller calls again, with these keys behind the others.
local function undeclared(...)
  local answer = {'declare'}
  for _, key in ipairs({...}) do
    local place = #KEYS
    while place > 0 and KEYS[place] ~= key do place = place - 1 end
    if place == 0 then answer[#answer + 1] = key end
  end
  return answer[2] and answer
end
