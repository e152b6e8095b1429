-- DELAY: set when a member of a list is due.
-- needs: clock
-- keys: list
-- args: member, delay_ms# (how long from now)
-- kept: for gateways
redis.call('ZREM', key.list, '') -- first, as in full.lua
redis.call('ZADD', key.list, now_ms() + delay_ms, member)
return 1
