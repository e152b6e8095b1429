-- Records of files. `member`: <tenant>/<id>, as the storage lists what is to be deleted there.
-- file: {file: its key, id, member, name, purpose, storage, num_bytes, owner, life_ms}; life_ms: '' for ever.
-- key: {files, quota, files_due}
-- needs: quota
local function record_file(key, file, now)
  local expires_ms = file.life_ms == '' and '' or string.format('%.0f', now + file.life_ms)
  redis.call('HSET', file.file, 'id', file.id, 'name', file.name, 'purpose', file.purpose, 'storage', file.storage,
    'num_bytes', file.num_bytes, 'owner', file.owner, 'created_ms', now, 'expires_ms', expires_ms, 'users', 0)
  redis.call('ZADD', key.files, now, file.id)
  add_to_quota(key.quota, file.owner, 'files', 1)
  add_to_quota(key.quota, file.owner, 'bytes', file.num_bytes)
  if expires_ms == '' then
    redis.call('ZREM', key.files_due, file.member)
  else
    redis.call('ZADD', key.files_due, expires_ms, file.member)
  end
end
