-- OWED: jobs of whose end Celery is to be told now: those whose result is owed, the longest due first, then those that no
-- worker had when they ended. They are due again after a while, unless that is done before. What is over at the ends of the
-- lists in which the latter waited is dropped if no worker serves the queue: who tells of them needs no message.
-- needs: clock, queue, stale
-- keys: owed, untold, pending, leases, served
-- args: most#, again_ms#, served_ms# (a queue is served for so long after a worker's report),
--       before, after (what a record's key has before and after the id)
-- builds keys: those of the records and lists, so this script needs a single Redis, not a cluster
-- Answers: for each job its id and its message, or '' if there is no record
local now, answer, lists = now_ms(), {}, {}

local function look(due)
  redis.call('ZREM', due, '') -- first, as in full.lua
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, most - #answer / 2)) do
    local state, envelope, queue, lane = unpack(
      redis.pcall('HMGET', before .. id .. after, 'state', 'envelope', 'queue', 'lane'))
    if state == 'queued' or state == 'running' then
      redis.call('ZREM', due, id) -- another job has the id by now
    else
      redis.call('ZADD', due, now + again_ms, id)
      answer[#answer + 1], answer[#answer + 2] = id, envelope or ''
      if queue and due == key.untold then lists[queue .. (lane or '')] = queue end
    end
  end
end

local function drop_from(list, queue)
  if now - tonumber(redis.call('ZSCORE', key.served, queue) or 0) < served_ms then return end
  drop_stale(key, own_queue(key.untold, list), before, after)
end

look(key.owed)
pcall(look, key.untold) -- a spoilt key keeps nothing that is owed from being told
for list, queue in pairs(lists) do pcall(drop_from, list, queue) end
return answer
