-- GATHER: lead the messages of stray lists into the lists of their queues that workers ask, each into that of its number.
-- needs: strays
-- args: max_moves#, max_bytes# (messages, and their bytes, that are moved)
-- list queues: args queue
-- also bindings: (of these queues)
-- builds keys: the names of lists, so this script needs a single Redis, not a cluster
-- Answers, for each separator found: queue, separator, messages moved, 1 if there may be more that can be moved
local num_left, bytes_left = max_moves, max_bytes
local answer = {}

-- Returns how many messages have gone from the end of one list to the beginning of the other.
local function move(queue, from, to)
  local num = 0
  while num_left > 0 and bytes_left > 0 do
    local message = redis.pcall('LINDEX', from, -1)
    if type(message) ~= 'string' or not is_sent_to(queue, message) then break end
    if type(redis.pcall('LPUSH', to, message)) ~= 'number' then break end
    redis.call('RPOP', from)
    num, num_left, bytes_left = num + 1, num_left - 1, bytes_left - #message
  end
  return num
end

for _, queue in ipairs(queues) do
  for _, sep in ipairs(separators_of(queue)) do
    local num = 0
    for number = 1, 9 do num = num + move(queue, queue .. sep .. number, queue .. '\006\022' .. number) end
    local is_full = num_left <= 0 or bytes_left <= 0
    for _, part in ipairs({queue, sep, num, is_full and 1 or 0}) do answer[#answer + 1] = part end
  end
end
return answer
