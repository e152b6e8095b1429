-- END_BATCH: ask a running batch to end. It sees that in the answer to its next report.
-- needs: full
-- keys: report
-- Answers 1, or 0 if no such batch runs.
if redis.call('HGET', key.report, 'state') ~= 'running' then return 0 end
go_on_when_full(key.report)
redis.call('HSET', key.report, 'asked_to_end', 1)
return 1
