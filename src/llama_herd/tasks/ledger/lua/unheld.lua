-- UNHELD: messages that are noted as held, though nobody has said so for a while. Before the others those that were noted
-- further ahead than that: the clock of Redis was put back, and who holds them notes them anew.
-- needs: clock
-- keys: times (of the notes, in s)
-- args: silent_s#, most# (messages)
-- Answers their tags, those noted first before the others
local now = now_ms() / 1000
local found = redis.call('ZRANGEBYSCORE', key.times, now + silent_s, '+inf', 'LIMIT', 0, most)
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', key.times, '-inf', now - silent_s, 'LIMIT', 0, most - #found)) do
  found[#found + 1] = tag
end
return found
