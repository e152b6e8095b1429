-- BATCH_CANCEL: let the feeder of a batch end it early.
-- needs: clock, batch, full
-- keys: batch
-- kept: for gateways
-- Answers: {'unknown'} | {'over', its state} | {'ok', its record}
local state, outcome = unpack(redis.call('HMGET', key.batch, 'state', 'outcome'))
if not state then return {'unknown'} end
if FINAL[state] then return {'over', state} end
if outcome then return {'over', 'finalizing'} end
go_on_when_full(key.batch)
if state ~= 'cancelling' then enter(key.batch, 'cancelling', now_ms()) end
return {'ok', redis.call('HGETALL', key.batch)}
