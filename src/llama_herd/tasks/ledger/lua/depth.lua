-- DEPTH: how many messages a queue has.
-- list lists: keys list
local num = 0
for _, list in ipairs(lists) do num = num + redis.call('LLEN', list) end
return num
