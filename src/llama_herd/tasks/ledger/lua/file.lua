-- Records of files. `member`: <tenant>/<id>, as the storage lists what is to be deleted there.
-- file: {key, id, member, name, purpose, storage, num_bytes, owner, life_ms}; life_ms: '' for ever.
-- at: {files, quota, due}
local function record_file(at, file, now)
  local expires_ms = file.life_ms == '' and '' or string.format('%.0f', now + file.life_ms)
  redis.call('HSET', file.key, 'id', file.id, 'name', file.name, 'purpose', file.purpose, 'storage', file.storage,
    'num_bytes', file.num_bytes, 'owner', file.owner, 'created_ms', now, 'expires_ms', expires_ms, 'users', 0)
  redis.call('ZADD', at.files, now, file.id)
  add_to_quota(at.quota, file.owner, 'files', 1)
  add_to_quota(at.quota, file.owner, 'bytes', file.num_bytes)
  if expires_ms == '' then
    redis.call('ZREM', at.due, file.member)
  else
    redis.call('ZADD', at.due, expires_ms, file.member)
  end
end
