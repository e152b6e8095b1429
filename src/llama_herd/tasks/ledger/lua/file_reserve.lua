-- FILE_RESERVE: count bytes of an upload before they are written. FILE_ADD counts the file in their place, and FILE_DROP
-- frees them.
-- needs: quota
-- keys: quota
-- args: id, owner (fingerprint of the key that brings it), num_bytes#, most, most_of_key (bytes of a tenant and of a key)
-- kept: for gateways
-- Answers: {'ok'} | {'full', what, whose, has, limit}
local full = beyond_quota(key.quota, owner, 'bytes', num_bytes, most, most_of_key)
if full then return full end
reserve_bytes(key.quota, id, owner, num_bytes)
return {'ok'}
