-- LISTING: a page of a tenant's files or batches, without those that have expired.
-- KEYS: 1 their ids by the time they were made
-- ARGV: start and end of a record's key, the id after which the page begins ('': at the beginning), most records,
--       'asc' or 'desc', the purpose that counts ('': any), '1': what has expired is left out
-- Answers: {'unknown'}: there is no such id; {'ok', 1 if there are more, record, ...}
local start, stop, after, most, order, purpose, leaves_out = unpack(ARGV)
local now = now_ms()

local function rank_of(id)
  if order == 'desc' then return redis.call('ZREVRANK', KEYS[1], id) end
  return redis.call('ZRANK', KEYS[1], id)
end

local function ids_from(first)
  local last = first + tonumber(most)
  if order == 'desc' then return redis.call('ZREVRANGE', KEYS[1], first, last) end
  return redis.call('ZRANGE', KEYS[1], first, last)
end

-- Returns whether there is such a record, and whether it belongs to the page.
local function look(id)
  local known, of, expires_ms = unpack(redis.call('HMGET', start .. id .. stop, 'id', 'purpose', 'expires_ms'))
  local is_over = leaves_out == '1' and (tonumber(expires_ms) or math.huge) <= now
  return known, (purpose == '' or of == purpose) and not is_over
end

local place = 0
if after ~= '' then
  local rank = rank_of(after)
  if not rank then return {'unknown'} end
  place = rank + 1
end
local page, gone = {'ok', 0}, {}
local ids = ids_from(place)
while #ids > 0 and page[2] == 0 do
  for _, id in ipairs(ids) do
    local is_known, belongs = look(id)
    if not is_known then
      gone[#gone + 1] = id
    elseif belongs then
      if #page - 2 == tonumber(most) then page[2] = 1 break end
      page[#page + 1] = redis.call('HGETALL', start .. id .. stop)
    end
  end
  place = place + #ids
  ids = ids_from(place)
end
for _, id in ipairs(gone) do redis.call('ZREM', KEYS[1], id) end
return page
