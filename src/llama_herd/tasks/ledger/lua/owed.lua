-- OWED: jobs of whose end Celery is to be told now: those whose result is owed, the longest due first, then those that no
-- worker had when they ended. They are due again after a while, unless that is done before.
-- needs: clock
-- keys: owed, untold
-- args: most#, again_ms#, before, after (what a record's key has before and after the id)
-- builds keys: those of the records, so this script needs a single Redis, not a cluster
-- Answers: for each job its id and its message, or '' if there is no record
local now, answer = now_ms(), {}

local function look(list)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', list, '-inf', now, 'LIMIT', 0, most - #answer / 2)) do
    local state, envelope = unpack(redis.pcall('HMGET', before .. id .. after, 'state', 'envelope'))
    if state == 'queued' or state == 'running' then
      redis.call('ZREM', list, id) -- another job has the id by now
    else
      redis.call('ZADD', list, now + again_ms, id)
      answer[#answer + 1], answer[#answer + 2] = id, envelope or ''
    end
  end
end

look(key.owed)
pcall(look, key.untold) -- a spoilt key keeps nothing that is owed from being told
return answer
