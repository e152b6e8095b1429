-- MEMBERS: members of a sorted set behind one of them, with their scores.
-- keys: list
-- args: last (the member behind which to begin, which may be gone; empty: none), score (its score then), most# (members),
--       order (asc or desc)
-- kept: for gateways
-- Answers: member, score, ...

-- By their bytes, as Redis orders members of one score. `<` in Lua goes by the machine's language.
local function comes_after(one, other)
  for n = 1, math.min(#one, #other) do
    local a, b = string.byte(one, n), string.byte(other, n)
    if a ~= b then return a > b end
  end
  return #one > #other
end

-- How many members come before `last`, and whether it is still there.
local function num_before()
  if redis.call('ZSCORE', key.list, last) == score then return redis.call('ZRANK', key.list, last), true end
  local first, past = redis.call('ZCOUNT', key.list, '-inf', '(' .. score), redis.call('ZCOUNT', key.list, '-inf', score)
  while first < past do
    local middle = math.floor((first + past) / 2)
    if comes_after(redis.call('ZRANGE', key.list, middle, middle)[1], last) then past = middle else first = middle + 1 end
  end
  return first, false
end

local function members_from(command, place)
  return redis.call(command, key.list, place, place + most - 1, 'WITHSCORES')
end

if last == '' then return members_from(order == 'desc' and 'ZREVRANGE' or 'ZRANGE', 0) end
local num, is_there = num_before()
if order == 'desc' then return members_from('ZREVRANGE', redis.call('ZCARD', key.list) - num) end
return members_from('ZRANGE', num + (is_there and 1 or 0))
