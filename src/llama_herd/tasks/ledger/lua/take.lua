-- TAKE: the next messages of a queue, each noted as held, as kombu notes it, before anybody reads it.
-- KEYS: 1 notes, 2 times of the notes, 3... the queue's lists
-- ARGV: 1 now (s), 2 the queue, 3 most bytes of a message, 4... for each message the order in which the lists
--       are asked, as their places among the keys: '3 4 5'
-- Answers: place of a list, tag, message, ... ; it ends before a message that is too long or that has no tag
local notes, times, now, queue, most_bytes = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[3])
local answer = {}

local function next_message(order)
  for place in string.gmatch(order, '%d+') do
    local message = redis.pcall('LINDEX', KEYS[tonumber(place)], -1)
    if type(message) == 'string' then return tonumber(place), message end
  end
end

local function tag_of(message)
  local is_read, read = pcall(cjson.decode, message)
  local properties = is_read and type(read) == 'table' and read.properties
  local tag = type(properties) == 'table' and properties.delivery_tag
  return type(tag) == 'string' and #tag <= 128 and string.find(tag, '^[%w._:-]+$') and tag or nil
end

for number = 4, #ARGV do
  local place, message = next_message(ARGV[number])
  local tag = message and #message <= most_bytes and tag_of(message)
  if not tag then return answer end
  redis.call('RPOP', KEYS[place])
  redis.call('HSET', notes, tag, '[' .. message .. ',"",' .. cjson.encode(queue) .. ']')
  redis.call('ZADD', times, now, tag)
  for _, part in ipairs({place, tag, message}) do answer[#answer + 1] = part end
end
return answer
