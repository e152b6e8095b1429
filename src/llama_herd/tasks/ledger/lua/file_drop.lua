-- FILE_DROP: forget a file, unless a batch reads it; of one without a record, what was reserved for it, and its place in
-- the list, where a page may have begun behind it until then. Whoever drops it first deletes its bytes; if he has not after
-- again_ms, they are due.
-- needs: clock, quota, full
-- keys: file, files, quota (of the tenant), files_due (of the storage)
-- args: id, member, only (expired: only if it is), again_ms# (how long to wait before looking at it again)
-- kept: for gateways
-- Answers: dropped | unknown | in_use | kept (it has not expired)
local now = now_ms()
local num_bytes, owner, users, expires_ms = unpack(
  redis.call('HMGET', key.file, 'num_bytes', 'owner', 'users', 'expires_ms'))
go_on_when_full(key.file)
if not num_bytes then
  free_reserved(key.quota, id)
  redis.call('ZREM', key.files, id)
  return 'unknown'
end
if only == 'expired' and (expires_ms == '' or tonumber(expires_ms) > now) then
  if expires_ms == '' then
    redis.call('ZREM', key.files_due, member)
  else
    redis.call('ZADD', key.files_due, expires_ms, member)
  end
  return 'kept'
end
if tonumber(users) > 0 then
  if only == 'expired' then redis.call('ZADD', key.files_due, now + again_ms, member) end
  return 'in_use'
end
redis.call('ZADD', key.files_due, now + again_ms, member)
redis.call('DEL', key.file)
add_to_quota(key.quota, owner, 'files', -1)
add_to_quota(key.quota, owner, 'bytes', -num_bytes)
return 'dropped'
