-- REPORTS: the reports of all workers, or of all batches, that have not expired.
-- needs: clock, declare
-- keys: index
-- args: prefix (of the reports' keys), longest_ms# (life of a report: one that expires later was written before the clock
--       was put back, perhaps by somebody who is gone; whoever is not will report again; empty: any life),
--       most# (reports: those that were written last)
-- more records: (the reports)
-- kept: for gateways
-- Answers, one for each report: {field, value, ...}. Without reports among the keys: {declare, their keys}
local now = now_ms()
redis.call('ZREMRANGEBYSCORE', key.index, '-inf', now)
if longest_ms then redis.call('ZREMRANGEBYSCORE', key.index, string.format('(%.0f', now + longest_ms), '+inf') end
local names = #records == 0 and redis.call('ZRANGE', key.index, -most, -1) or {}
if #names > 0 then return ask_for(names, prefix, '') end
local found = {}
for _, report in ipairs(records) do
  if redis.call('ZSCORE', key.index, name_in(report, prefix, '')) then
    found[#found + 1] = redis.call('HGETALL', report)
  end
end
return found
