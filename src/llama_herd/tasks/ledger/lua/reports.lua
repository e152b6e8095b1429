-- REPORTS: the reports of all workers, or of all batches, that have not expired.
-- KEYS: 1 index
-- ARGV: 1 prefix of the reports' keys, 2 longest life of a report (ms): one that expires later was written before the
--       clock was put back, perhaps by somebody who is gone; whoever is not will report again ('': any life)
-- Answers, one for each report: {field, value, ...}
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if ARGV[2] ~= '' then redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now + ARGV[2]), '+inf') end
local reports = {}
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  reports[#reports + 1] = redis.call('HGETALL', ARGV[1] .. name)
end
return reports
