-- DEPTH: how many messages a queue has.
-- KEYS: its lists
local depth = 0
for _, list in ipairs(KEYS) do depth = depth + redis.call('LLEN', list) end
return depth
