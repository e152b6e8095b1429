-- BATCH_NOTE: note how far a batch is, and renew its lease.
-- needs: clock, batch, full
-- keys: batch, due (the storage's due batches)
-- args: member, epoch, lease_ms# (0: give it back), entered (the state it enters; empty: none)
-- pairs fields:
-- kept: for gateways
-- A batch that is to be cancelled enters no other state.
-- Answers: {'fenced'} | {'ok', its state}
local now = now_ms()
local state = state_of_mine(key.batch, epoch)
if not state then return {'fenced'} end
go_on_when_full(key.batch)
if #fields > 0 then redis.call('HSET', key.batch, unpack(fields)) end
if entered ~= '' and entered ~= state and state ~= 'cancelling' then
  state = entered
  enter(key.batch, state, now)
end
redis.call('ZADD', key.due, now + lease_ms, member)
return {'ok', state}
