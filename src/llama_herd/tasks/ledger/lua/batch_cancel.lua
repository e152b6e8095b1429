-- BATCH_CANCEL: let the feeder of a batch end it early.
-- KEYS: 1 the batch
-- Answers: {'unknown'} | {'over', its state} | {'ok', its record}
local state, outcome = unpack(redis.call('HMGET', KEYS[1], 'state', 'outcome'))
if not state then return {'unknown'} end
if FINAL[state] then return {'over', state} end
if outcome then return {'over', 'finalizing'} end
if state ~= 'cancelling' then enter(KEYS[1], 'cancelling', now_ms()) end
return {'ok', redis.call('HGETALL', KEYS[1])}
