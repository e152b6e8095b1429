-- REPORTS: what every worker, or every batch, has said of itself within the life of its words.
-- KEYS: 1 index
-- ARGV: 1 prefix of the hashes' keys
-- Answers, one a hash: {field, value, ...}
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now_ms())
local reports = {}
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  reports[#reports + 1] = redis.call('HGETALL', ARGV[1] .. name)
end
return reports
