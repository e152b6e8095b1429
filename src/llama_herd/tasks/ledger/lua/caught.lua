-- What an error says that pcall has caught: from Redis 7 on that of a command is a table.
local function words_of(caught) return type(caught) == 'table' and caught.err or tostring(caught) end
