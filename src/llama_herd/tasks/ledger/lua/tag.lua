-- The tag of a message; see push.lua. Returns the job's id and the time; nothing for a bare message, or a long one, which
-- is never ours.
local function read_tag(message)
  if #message < 16384 then return string.match(message, '"delivery_tag": ?"([%w._:-]+):%d+:(%d+)"') end
end
