-- LISTING: a page of a tenant's files or batches, without those that have expired.
-- needs: clock
-- keys: index (their ids by the time they were made)
-- args: before, after (what a record's key has before and after the id), last (the id behind which the page begins;
--       empty: at the beginning), most# (records), order (asc or desc), purpose (that counts; empty: any),
--       leaves_out (1: what has expired)
-- builds keys: those of the records
-- kept: for gateways
-- Answers: {'unknown'}: there is no such id; {'ok', 1 if there are more, record, ...}
local now = now_ms()

local function rank_of(id)
  if order == 'desc' then return redis.call('ZREVRANK', key.index, id) end
  return redis.call('ZRANK', key.index, id)
end

local function ids_from(first)
  local past = first + most
  if order == 'desc' then return redis.call('ZREVRANGE', key.index, first, past) end
  return redis.call('ZRANGE', key.index, first, past)
end

-- Returns whether there is such a record, and whether it belongs to the page.
local function look(id)
  local known, of, expires_ms = unpack(redis.call('HMGET', before .. id .. after, 'id', 'purpose', 'expires_ms'))
  local is_over = leaves_out == '1' and (tonumber(expires_ms) or math.huge) <= now
  return known, (purpose == '' or of == purpose) and not is_over
end

local place = 0
if last ~= '' then
  local rank = rank_of(last)
  if not rank then return {'unknown'} end
  place = rank + 1
end
local page, gone = {'ok', 0}, {}
local ids = ids_from(place)
while #ids > 0 and page[2] == 0 do
  for _, id in ipairs(ids) do
    local is_known, belongs = look(id)
    if not is_known then
      if leaves_out ~= '1' then gone[#gone + 1] = id end -- of a file FILE_DROP forgets the place
    elseif belongs then
      if #page - 2 == most then page[2] = 1 break end
      page[#page + 1] = redis.call('HGETALL', before .. id .. after)
    end
  end
  place = place + #ids
  ids = ids_from(place)
end
for _, id in ipairs(gone) do redis.call('ZREM', key.index, id) end
return page
