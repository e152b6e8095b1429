-- SHARE_SERVER: note what a worker has in the hands of a server that others share, and whether more may go there.
-- needs: clock
-- keys: server (owners of workers with jobs there, and `alone:<owner>` of the one that has it, or waits for it, alone)
-- args: owner, life_ms# (how long it counts as told, unless it is told again), has_jobs# (1: there), is_alone# (1: others
--       have to leave), enters (any: a job; alone: one that must be alone there; empty: none)
-- Answers two flags: may it enter | has another worker the server alone, or does it wait for that
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', key.server, '-inf', now)
local other_has_jobs, other_is_alone = false, false
for _, member in ipairs(redis.call('ZRANGE', key.server, 0, -1)) do
  local alone = string.sub(member, 1, 6) == 'alone:' and string.sub(member, 7)
  other_is_alone = other_is_alone or alone and alone ~= owner
  other_has_jobs = other_has_jobs or not alone and member ~= owner
end

local function note(member, is_so)
  if is_so then
    redis.call('ZADD', key.server, now + life_ms, member)
  else
    redis.call('ZREM', key.server, member)
  end
end

local may_enter = enters ~= '' and not other_is_alone and not (enters == 'alone' and other_has_jobs)
note(owner, has_jobs == 1 or may_enter)
note('alone:' .. owner, not other_is_alone and (is_alone == 1 or may_enter and enters == 'alone'))
redis.call('PEXPIRE', key.server, life_ms)
return {may_enter and 1 or 0, other_is_alone and 1 or 0}
