-- Where Redis is full, what it has accepted goes on, and only what brings something new is refused. At its maxmemory Redis
-- refuses a script's first write if that takes memory. A write that takes none lets all others follow.
local function go_on_when_full(hash) redis.pcall('HDEL', hash, '') end
