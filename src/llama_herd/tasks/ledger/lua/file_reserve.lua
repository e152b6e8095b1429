-- FILE_RESERVE: count bytes of an upload before they are written. FILE_ADD counts the file in their place, and FILE_DROP
-- frees them.
-- KEYS: 1 the tenant's quota
-- ARGV: 1 id, 2 fingerprint of the key that brings it, 3 bytes, 4 most bytes of a tenant, 5 and of a key
-- Answers: {'ok'} | {'full', what, whose, has, limit}
local full = beyond_quota(KEYS[1], ARGV[2], 'bytes', tonumber(ARGV[3]), ARGV[4], ARGV[5])
if full then return full end
reserve_bytes(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
return {'ok'}
