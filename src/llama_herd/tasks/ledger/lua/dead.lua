-- DEAD: keep a message that could not be read; the caller has cut it if it was too long.
-- keys: dead (the letters)
-- args: most, ttl_s (life of a letter)
-- pairs fields:
redis.call('XTRIM', key.dead, 'MAXLEN', most) -- first, as in full.lua
redis.call('XADD', key.dead, 'MAXLEN', most, '*', unpack(fields))
redis.call('EXPIRE', key.dead, ttl_s)
