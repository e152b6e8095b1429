-- FILE_ADD: record a file whose bytes lie in the storage. Repeating it changes nothing.
-- KEYS: 1 the file, 2 the tenant's files, 3 the tenant's quota, 4 the storage's due files
-- ARGV: id, member, name, purpose, storage, bytes, fingerprint of the key that brought it, life (ms),
--       most files of a tenant and of a key, most bytes of a tenant and of a key
-- Answers: {'ok', its record} | {'full', what, whose, has, limit}
local id, member, name, purpose, storage, num_bytes, owner, life_ms = unpack(ARGV, 1, 8)
local most_files, most_files_of_key, most_bytes, most_bytes_of_key = unpack(ARGV, 9, 12)
if not redis.call('HGET', KEYS[1], 'id') then
  free_reserved(KEYS[3], id)
  local full = beyond_quota(KEYS[3], owner, 'files', 1, most_files, most_files_of_key)
    or beyond_quota(KEYS[3], owner, 'bytes', tonumber(num_bytes), most_bytes, most_bytes_of_key)
  if full then return full end
  record_file({files = KEYS[2], quota = KEYS[3], due = KEYS[4]}, {key = KEYS[1], id = id, member = member, name = name,
    purpose = purpose, storage = storage, num_bytes = num_bytes, owner = owner, life_ms = life_ms}, now_ms())
end
return {'ok', redis.call('HGETALL', KEYS[1])}
