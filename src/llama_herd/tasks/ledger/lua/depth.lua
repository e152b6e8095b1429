-- DEPTH: how many messages a queue has.
-- KEYS: its lists
local num = 0
for _, list in ipairs(KEYS) do num = num + redis.call('LLEN', list) end
return num
