-- HOLD: note that a worker still holds these messages.
-- needs: clock
-- keys: times (of the notes, in s)
-- list tags: args tag
local now = now_ms() / 1000
redis.call('ZREM', key.times, '') -- first, as in full.lua
for _, tag in ipairs(tags) do redis.call('ZADD', key.times, 'XX', now, tag) end
return redis.status_reply('OK')
