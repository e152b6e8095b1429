-- DEAD: keep a message that could not be read; the caller has cut it if it was too long.
-- KEYS: 1 dead letters
-- ARGV: 1 most letters, 2 life of a letter (s), then field, value, ...
redis.call('XADD', KEYS[1], 'MAXLEN', ARGV[1], '*', unpack(ARGV, 3))
redis.call('EXPIRE', KEYS[1], ARGV[2])
