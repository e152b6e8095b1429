-- RENEW: renew the lease of a job that this worker owns and that emits nothing at the moment.
-- KEYS: 1 job record, 2 leases
-- ARGV: 1 id, 2 owner, 3 epoch, 4 lease (ms)
-- Answers: {ok | fenced | finished | cancelled, reason}. A cancelled job is renewed too: its owner will end it.
local job, leases = KEYS[1], KEYS[2]
local record = redis.call('HMGET', job, 'owner', 'epoch', 'state', 'cancel')
if record[1] ~= ARGV[2] or record[2] ~= ARGV[3] then return {'fenced', ''} end
if record[3] ~= 'running' then return {'finished', record[3]} end

local lease = now_ms() + ARGV[4]
redis.call('HSET', job, 'lease', lease)
redis.call('ZADD', leases, lease, ARGV[1])
if record[4] then return {'cancelled', record[4]} end
return {'ok', ''}
