-- MEMBERS: members of a sorted set behind one of them, with their scores.
-- keys: list
-- args: last (the member behind which to begin; empty: none), score (its score then), most# (members), order (asc or desc)
-- kept: for gateways
-- Answers: member, score, ... Once `last` is gone, or has another score, it begins with all that have `score`.
local function members_from(place)
  local command = order == 'desc' and 'ZREVRANGE' or 'ZRANGE'
  return redis.call(command, key.list, place, place + most - 1, 'WITHSCORES')
end

if last == '' then return members_from(0) end
if redis.call('ZSCORE', key.list, last) == score then
  return members_from(1 + redis.call(order == 'desc' and 'ZREVRANK' or 'ZRANK', key.list, last))
end
if order == 'desc' then return members_from(redis.call('ZCOUNT', key.list, '(' .. score, '+inf')) end
return members_from(redis.call('ZCOUNT', key.list, '-inf', '(' .. score))
