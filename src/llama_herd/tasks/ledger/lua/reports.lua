-- REPORTS: the reports of all workers, or of all batches, that have not expired.
-- KEYS: 1 index
-- ARGV: 1 prefix of the reports' keys
-- Answers, one for each report: {field, value, ...}
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now_ms())
local reports = {}
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  reports[#reports + 1] = redis.call('HGETALL', ARGV[1] .. name)
end
return reports
