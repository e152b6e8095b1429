-- TAKE: the next messages of a queue, each noted as held, as kombu notes it, before anybody reads it.
-- needs: clock
-- keys: notes, times (of the notes, in s)
-- args: queue, max_bytes# (of a lot: it ends with the message that goes beyond), leave# (so many messages are for
--       others; 0: none), left (the mark of a message that was left to them before, and may be taken now)
-- list lists: keys list (of the queue)
-- list orders: args tag (under which a message is noted, with its list behind it: PUT_BACK needs that), order (in which
--   the lists are asked for it, as their places: '1 2 3')
-- Answers: the mark of the message that is left to others, if only that keeps all from being taken; place of a list,
--   tag, message, ... Fails only if it has taken none.
local MARKED = 256 -- bytes at a message's end, where its tag is
local answer, num_bytes, most, now = {''}, 0, #orders, now_ms() / 1000

-- The next message and the place of its list; or no message, and what is wrong with a list that is asked before.
local function next_message(order)
  for place in string.gmatch(order, '%d+') do
    local message = redis.pcall('LINDEX', lists[tonumber(place)], -1)
    if type(message) == 'string' then return message, tonumber(place) end
    if message then return nil, message end
  end
end

local function num_waiting()
  local num = 0
  for _, list in ipairs(lists) do
    local found = redis.pcall('LLEN', list)
    num = num + (type(found) == 'number' and found or 0)
  end
  return num
end

local first = leave > 0 and next_message(orders[1].order)
if first then
  local mark = redis.sha1hex(string.sub(first, -MARKED))
  most = math.min(most, math.max(num_waiting() - leave, mark == left and 1 or 0))
  if most == 0 then return {mark} end
end

for number = 1, most do
  local one = orders[number]
  local message, found = next_message(one.order)
  if not message then return #answer == 1 and found or answer end
  redis.call('RPOP', lists[found]) -- the first write: a Redis that is full lets the others follow
  local tag = one.tag .. ':' .. lists[found]
  redis.call('HSET', key.notes, tag, '[' .. message .. ',"",' .. cjson.encode(queue) .. ']')
  redis.call('ZADD', key.times, now, tag)
  for _, part in ipairs({found, tag, message}) do answer[#answer + 1] = part end
  num_bytes = num_bytes + #message
  if num_bytes > max_bytes then return answer end
end
return answer
