-- REVIVE: push a dead letter back to the queue it came from.
-- needs: declare, queue
-- keys: dead (the letters)
-- args: number (of the letter)
-- also queues: (that the letter names)
-- kept: for gateways
-- Answers: revived | cut (the letter does not have the whole message) | unknown | {declare, the queue}
local found = redis.call('XRANGE', key.dead, number, number)[1]
if not found then return 'unknown' end
local letter = {}
for place = 1, #found[2], 2 do letter[found[2][place]] = found[2][place + 1] end
if #letter.raw < tonumber(letter.num_bytes) then return 'cut' end
local queue = own_queue(key.dead, letter.queue)
local missing = undeclared(queue)
if missing then return missing end
checked_num(redis.pcall('LPUSH', queue, letter.raw), queue)
redis.call('XDEL', key.dead, number)
return 'revived'
