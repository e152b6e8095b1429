-- REPORT: store the report of a worker or a batch. It expires if no further report comes.
-- KEYS: 1 the report, 2 the index of such reports
-- ARGV: 1 name, 2 life (s), then field, value, ...
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 3))
redis.call('HSET', KEYS[1], 'beat_ms', now_ms())
redis.call('EXPIRE', KEYS[1], ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms())
redis.call('ZADD', KEYS[2], now_ms() + 1000 * ARGV[2], ARGV[1])
