-- DEAD: keep a message that could not be accepted, the newest first, the oldest forgotten.
-- KEYS: 1 list
-- ARGV: 1 most letters, 2 letter's JSON after its time
redis.call('LPUSH', KEYS[1], string.format('{"at_ms":%.0f,%s', now_ms(), ARGV[2]))
redis.call('LTRIM', KEYS[1], 0, ARGV[1] - 1)
