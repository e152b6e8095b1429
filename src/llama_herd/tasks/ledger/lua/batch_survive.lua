-- BATCH_SURVIVE: a feeder lives on that has left a batch, so it had not taken it in vain.
-- needs: full
-- keys: batch
-- kept: for gateways
-- Whoever has the batch now may have got on with it, or taken it besides.
-- Answers: nothing
go_on_when_full(key.batch)
if (tonumber(redis.call('HGET', key.batch, 'vain_claims')) or 0) > 0 then
  redis.call('HINCRBY', key.batch, 'vain_claims', -1)
end
return ''
