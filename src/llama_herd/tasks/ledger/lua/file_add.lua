-- FILE_ADD: record a file whose bytes lie in the storage. Repeating it changes nothing.
-- needs: clock, file
-- keys: file, files, quota (of the tenant), files_due (of the storage)
-- args: id, member, name, purpose, storage, num_bytes, owner (fingerprint of the key that brought it),
--       life_ms (empty: for ever), most_files, most_files_of_key, most_bytes, most_bytes_of_key
-- kept: for gateways
-- Answers: {'ok', its record} | {'full', what, whose, has, limit}
if not redis.call('HGET', key.file, 'id') then
  free_reserved(key.quota, id)
  local full = beyond_quota(key.quota, owner, 'files', 1, most_files, most_files_of_key)
    or beyond_quota(key.quota, owner, 'bytes', tonumber(num_bytes), most_bytes, most_bytes_of_key)
  if full then return full end
  record_file(key, {file = key.file, id = id, member = member, name = name, purpose = purpose, storage = storage,
    num_bytes = num_bytes, owner = owner, life_ms = life_ms}, now_ms())
end
return {'ok', redis.call('HGETALL', key.file)}
