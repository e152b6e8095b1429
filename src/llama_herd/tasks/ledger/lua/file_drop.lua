-- FILE_DROP: forget a file, unless a batch reads it; of one without a record, what was reserved for it. Its bytes are due to be deleted from then on.
-- KEYS: 1 the file, 2 the tenant's files, 3 the tenant's quota, 4 the storage's due files
-- ARGV: 1 id, 2 member, 3 'expired': only if it is, 4 how long to wait before looking at it again (ms)
-- Answers: dropped | unknown | in_use | kept (it has not expired)
local now = now_ms()
local num_bytes, owner, users, expires_ms = unpack(
  redis.call('HMGET', KEYS[1], 'num_bytes', 'owner', 'users', 'expires_ms'))
if not num_bytes then
  free_reserved(KEYS[3], ARGV[1])
  return 'unknown'
end
if ARGV[3] == 'expired' and (expires_ms == '' or tonumber(expires_ms) > now) then
  if expires_ms == '' then
    redis.call('ZREM', KEYS[4], ARGV[2])
  else
    redis.call('ZADD', KEYS[4], expires_ms, ARGV[2])
  end
  return 'kept'
end
if tonumber(users) > 0 then
  if ARGV[3] == 'expired' then redis.call('ZADD', KEYS[4], now + ARGV[4], ARGV[2]) end
  return 'in_use'
end
redis.call('ZADD', KEYS[4], now, ARGV[2])
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('DEL', KEYS[1])
add_to_quota(KEYS[3], owner, 'files', -1)
add_to_quota(KEYS[3], owner, 'bytes', -num_bytes)
return 'dropped'
