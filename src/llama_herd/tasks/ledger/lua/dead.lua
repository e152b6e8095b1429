-- DEAD: keep a message that could not be read; the caller has cut it if it was too long.
-- keys: letters
-- args: most, ttl_s (life of a letter)
-- pairs fields:
redis.call('XADD', key.letters, 'MAXLEN', most, '*', unpack(fields))
redis.call('EXPIRE', key.letters, ttl_s)
