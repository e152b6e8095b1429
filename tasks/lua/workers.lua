-- WORKERS: every worker that has spoken within its life.
-- KEYS: 1 index of workers
-- ARGV: 1 prefix of a worker's key
-- Answers, one a worker: {field, value, ...}
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now_ms())
local workers = {}
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  workers[#workers + 1] = redis.call('HGETALL', ARGV[1] .. name)
end
return workers
