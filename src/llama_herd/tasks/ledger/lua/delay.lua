-- DELAY: set when a member of a list is due.
-- KEYS: 1 the list
-- ARGV: 1 member, 2 how long from now (ms)
redis.call('ZADD', KEYS[1], now_ms() + ARGV[2], ARGV[1])
return 1
