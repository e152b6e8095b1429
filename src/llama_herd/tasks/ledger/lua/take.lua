-- TAKE: the next messages of a queue, each noted as held, as kombu notes it, before anybody reads it.
-- keys: notes, times (of the notes)
-- args: now (s), queue, max_bytes# (of a lot: it ends with the message that goes beyond)
-- list lists: keys list (of the queue)
-- list orders: args tag (under which a message is noted), order (in which the lists are asked for it, as their
--   places: '1 2 3')
-- Answers: place of a list, tag, message, ... Fails only if it has taken none.
local answer, num_bytes = {}, 0

-- The next message and the place of its list; or no message, and what is wrong with a list that is asked before.
local function next_message(order)
  for place in string.gmatch(order, '%d+') do
    local message = redis.pcall('LINDEX', lists[tonumber(place)], -1)
    if type(message) == 'string' then return message, tonumber(place) end
    if message then return nil, message end
  end
end

for _, one in ipairs(orders) do
  local message, found = next_message(one.order)
  if not message then return #answer == 0 and found or answer end
  redis.call('RPOP', lists[found]) -- the first write: a Redis that is full lets the others follow
  redis.call('HSET', key.notes, one.tag, '[' .. message .. ',"",' .. cjson.encode(queue) .. ']')
  redis.call('ZADD', key.times, now, one.tag)
  for _, part in ipairs({found, one.tag, message}) do answer[#answer + 1] = part end
  num_bytes = num_bytes + #message
  if num_bytes > max_bytes then return answer end
end
return answer
