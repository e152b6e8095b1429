-- TAKE: the next messages of a queue, each noted as held, as kombu notes it, before anybody reads it.
-- keys: notes, times (of the notes)
-- args: now (s), queue, max_bytes# (of a message)
-- list lists: keys list (of the queue)
-- list orders: args order (for each message that in which the lists are asked, as their places: '1 2 3')
-- Answers: place of a list, tag, message, ... ; it ends before a message that is too long or that has no tag
local answer = {}

local function next_message(order)
  for place in string.gmatch(order, '%d+') do
    local message = redis.pcall('LINDEX', lists[tonumber(place)], -1)
    if type(message) == 'string' then return tonumber(place), message end
  end
end

local function tag_of(message)
  local is_read, read = pcall(cjson.decode, message)
  local properties = is_read and type(read) == 'table' and read.properties
  local tag = type(properties) == 'table' and properties.delivery_tag
  return type(tag) == 'string' and #tag <= 128 and string.find(tag, '^[%w._:-]+$') and tag or nil
end

for _, order in ipairs(orders) do
  local place, message = next_message(order)
  local tag = message and #message <= max_bytes and tag_of(message)
  if not tag then return answer end
  redis.call('RPOP', lists[place])
  redis.call('HSET', key.notes, tag, '[' .. message .. ',"",' .. cjson.encode(queue) .. ']')
  redis.call('ZADD', key.times, now, tag)
  for _, part in ipairs({place, tag, message}) do answer[#answer + 1] = part end
end
return answer
