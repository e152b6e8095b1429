-- REVIVE: push a dead letter back to the queue it came from.
-- KEYS: 1 dead letters, then the queue that the letter names
-- ARGV: 1 number of the letter
-- Answers: revived | cut (the letter does not have the whole message) | unknown |
--       {declare, that last key}
local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])[1]
if not found then return 'unknown' end
local letter = {}
for place = 1, #found[2], 2 do letter[found[2][place]] = found[2][place + 1] end
if #letter.raw < tonumber(letter.num_bytes) then return 'cut' end
local queue = own_queue(KEYS[1], letter.queue)
local missing = undeclared(queue)
if missing then return missing end
redis.call('LPUSH', queue, letter.raw)
redis.call('XDEL', KEYS[1], ARGV[1])
return 'revived'
