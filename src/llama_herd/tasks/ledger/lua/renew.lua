-- RENEW: renew the leases of jobs that this worker owns and that emit nothing at the moment.
-- KEYS: the leases of each tenant, then for each job its record
-- ARGV: 1 owner, 2 lease (ms), 3 number of tenants, then for each job: number of its tenant, id, epoch
-- Answers, for each job: ok | fenced | finished | cancelled | error, reason. A cancelled job is renewed too: its owner
--       will end it.
local owner, num_tenants = ARGV[1], tonumber(ARGV[3])
local lease = now_ms() + ARGV[2]

local function renew(job, leases, id, epoch)
  local record = redis.pcall('HMGET', job, 'owner', 'epoch', 'state', 'cancel')
  if record.err then return 'error', record.err end
  if record[1] ~= owner or record[2] ~= epoch then return 'fenced', '' end
  if record[3] ~= 'running' then return 'finished', record[3] end
  redis.call('HSET', job, 'lease', lease)
  local added = redis.pcall('ZADD', leases, lease, id)
  if type(added) == 'table' then return 'error', added.err end
  if record[4] then return 'cancelled', record[4] end
  return 'ok', ''
end

local answers = {}
for place = 1, #KEYS - num_tenants do
  local a = 1 + 3 * place
  answers[2 * place - 1], answers[2 * place] =
    renew(KEYS[num_tenants + place], KEYS[tonumber(ARGV[a])], ARGV[a + 1], ARGV[a + 2])
end
return answers
