-- Stray lists: those of a queue that no worker asks, since their producer has another `sep` than kombu's. The binding that
-- kombu writes when a producer declares the queue names it: <queue><sep><sep><queue>.

-- Most separators of a queue, and most bytes of one: anybody who may send may write bindings.
local MAX_SEPARATORS, MAX_SEPARATOR = 8, 16

local function separators_of(queue)
  local found = {}
  local members = redis.pcall('SSCAN', '_kombu.binding.' .. queue, 0, 'COUNT', 100)[2] or {}
  for _, member in ipairs(members) do
    local middle = string.sub(member, #queue + 1, -#queue - 1)
    local sep = string.sub(middle, 1, math.floor(#middle / 2))
    local is_one = #sep > 0 and #sep <= MAX_SEPARATOR and member == queue .. sep .. sep .. queue
    if is_one and sep ~= '\006\022' and #found < MAX_SEPARATORS then found[#found + 1] = sep end
  end
  return found
end

-- Whether a message was sent to this queue. A stray list may have the name of another queue: with ':' that of a model of
-- another tenant. Quotes inside a text are escaped, so no text reads so.
local function is_sent_to(queue, message)
  return string.find(message, '"routing_key": "' .. queue .. '"', 1, true)
    or string.find(message, '"routing_key":"' .. queue .. '"', 1, true)
end
