-- REPORTS: the reports of all workers, or of all batches, that have not expired.
-- KEYS: 1 index, then the reports
-- ARGV: 1 prefix of the reports' keys, 2 longest life of a report (ms): one that expires later was written before the
--       clock was put back, perhaps by somebody who is gone; whoever is not will report again ('': any life),
--       3 most reports: those that were written last
-- Answers, one for each report: {field, value, ...}. Without reports among the keys: {declare, their keys}
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if ARGV[2] ~= '' then redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now + ARGV[2]), '+inf') end
local names = #KEYS == 1 and redis.call('ZRANGE', KEYS[1], -ARGV[3], -1) or {}
if #names > 0 then return ask_for(names, ARGV[1], '') end
local reports = {}
for place = 2, #KEYS do
  if redis.call('ZSCORE', KEYS[1], name_in(KEYS[place], ARGV[1], '')) then
    reports[#reports + 1] = redis.call('HGETALL', KEYS[place])
  end
end
return reports
