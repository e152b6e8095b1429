-- BATCH_NOTE: note how far a batch is, and renew its lease.
-- KEYS: 1 the batch, 2 the storage's due batches
-- ARGV: 1 member, 2 epoch, 3 lease (ms; 0: give it back), 4 the state it enters ('': none), which a batch that is to be
--       cancelled does not, then field, value, ...
-- Answers: {'fenced'} | {'ok', its state}
local now = now_ms()
local state = state_of_mine(KEYS[1], ARGV[2])
if not state then return {'fenced'} end
if #ARGV > 4 then redis.call('HSET', KEYS[1], unpack(ARGV, 5)) end
if ARGV[4] ~= '' and ARGV[4] ~= state and state ~= 'cancelling' then
  state = ARGV[4]
  enter(KEYS[1], state, now)
end
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
return {'ok', state}
