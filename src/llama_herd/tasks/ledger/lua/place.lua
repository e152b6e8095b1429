-- PLACE: how many jobs wait before one, and how fast jobs are taken.
-- KEYS: 1 job record, 2 pending, 3 waiting
-- ARGV: 1 id
-- Answers: nothing for a job that does not wait; else its place, in how many ms it is due (0: it is), jobs taken lately
--       from its queue, in how many ms
-- The place counts waiting jobs of the tenant by the time they were accepted, but no more than wait for this model.
local rank = redis.call('ZRANK', KEYS[2], ARGV[1])
if not rank then return false end
local job = redis.call('HMGET', KEYS[1], 'queue', 'due_ms')
local queue = job[1] or ''
local flow = redis.call('HMGET', KEYS[3], queue .. ':jobs', queue .. ':taken', queue .. ':since')
local now = now_ms()
local place = math.min(rank + 1, math.max(1, tonumber(flow[1]) or rank + 1))
local due_in = math.max(0, math.floor((tonumber(job[2]) or now) - now))
return {place, due_in, math.floor(tonumber(flow[2]) or 0), math.floor(now - (tonumber(flow[3]) or now))}
