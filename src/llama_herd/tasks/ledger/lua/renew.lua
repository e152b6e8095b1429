-- RENEW: renew the leases of jobs that this worker owns and that emit nothing at the moment.
-- needs: clock, full
-- args: owner, lease_ms#
-- list tenants: keys leases
-- list jobs: keys job; args tenant# (its place in the list), id, epoch, preemptions# (how often it has lost its
--       place in the batch, if it has none now; else 0)
-- Answers, for each job: ok | fenced | finished | cancelled | error, reason. A cancelled job is renewed too: its owner
--       will end it.
local lease = now_ms() + lease_ms

local function renew(one)
  local record = redis.pcall('HMGET', one.job, 'owner', 'epoch', 'state', 'cancel', 'n')
  if record.err then return 'error', record.err end
  if record[1] ~= owner or record[2] ~= one.epoch then return 'fenced', '' end
  if record[3] ~= 'running' then return 'finished', record[3] end
  redis.call('HSET', one.job, 'lease', lease)
  -- It has a place again once more tokens are recorded.
  if one.preemptions > 0 then redis.call('HSET', one.job, 'preemptions', one.preemptions, 'preempted_n', record[5]) end
  local added = redis.pcall('ZADD', tenants[one.tenant], lease, one.id)
  if type(added) == 'table' then return 'error', added.err end
  if record[4] then return 'cancelled', record[4] end
  return 'ok', ''
end

local answers = {}
if jobs[1] then go_on_when_full(jobs[1].job) end
for place, one in ipairs(jobs) do answers[2 * place - 1], answers[2 * place] = renew(one) end
return answers
