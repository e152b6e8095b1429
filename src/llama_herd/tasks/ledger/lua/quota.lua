-- What a tenant has: `files`, `bytes` and `rows` under way; and of it what each key has: `files:<fingerprint>` ...
local function of_key(what, key) return what .. ':' .. key end

-- Adds to what a tenant, and a key of it, has. key: '' for none.
-- Nothing taken away is -0 in Lua, which Redis before 7.2 does not take for a number.
local function add_to_quota(quota, key, what, num)
  num = num + 0 == 0 and 0 or num
  for _, field in ipairs(key == '' and {what} or {what, of_key(what, key)}) do
    if redis.call('HINCRBY', quota, field, num) <= 0 then redis.call('HDEL', quota, field) end
  end
end

-- Returns {'full', what, whose, has, limit} if so many more would be too many; nothing if not. 0: no limit.
local function beyond_quota(quota, key, what, num, most, most_of_key)
  local has = tonumber(redis.call('HGET', quota, what)) or 0
  if tonumber(most) > 0 and has + num > tonumber(most) then return {'full', what, 'tenant', has, most} end
  if key == '' or tonumber(most_of_key) == 0 then return end
  has = tonumber(redis.call('HGET', quota, of_key(what, key))) or 0
  if has + num > tonumber(most_of_key) then return {'full', what, 'key', has, most_of_key} end
end

-- Bytes of an upload that has no record yet: `upload:<id>`, with the key that brings it behind a slash.
local function upload_of(quota, id) return string.match(redis.call('HGET', quota, 'upload:' .. id) or '', '^(%d+)/(.*)$') end

local function reserve_bytes(quota, id, key, num_bytes)
  local reserved = upload_of(quota, id) or 0
  add_to_quota(quota, key, 'bytes', num_bytes)
  redis.call('HSET', quota, 'upload:' .. id, string.format('%.0f/%s', reserved + num_bytes, key))
end

local function free_reserved(quota, id)
  local reserved, key = upload_of(quota, id)
  if not reserved then return end
  add_to_quota(quota, key, 'bytes', -reserved)
  redis.call('HDEL', quota, 'upload:' .. id)
end
