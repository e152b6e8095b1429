-- Some keys are known only once a record is read. If the caller has not declared them, a script answers
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
