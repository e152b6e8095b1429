-- The outbox: the webhooks that are still to be sent. `outbox` lists messages by when they are due, `outbox:entries`
-- holds each of them, `outbox:dead` lists those that were given up.
-- `key`: its keys, and `webhook`: what the tenant wants to be told.
-- The script that writes an end writes its message. A spoilt key of the outbox holds up no end, hence pcall.
-- needs: clock, batch_row
local END_TYPES = {done = 'job.completed', failed = 'job.failed', cancelled = 'job.cancelled'}

-- The same id for each try. A full stop would part what is signed, and no id has a tilde.
local function message_of(id) return 'msg_' .. string.gsub(id, '%.', '~') end

-- Puts a message into the outbox, due now. `hook`: the address to send it to, `secret`: what it is signed with, if not
-- the tenant's.
local function note_webhook(key, id, type, state, now, hook, secret, finish_reason)
  local message, entry = message_of(id), {type = type, id = id, state = state, ended_ms = now, tries = 0}
  entry.url, entry.secret, entry.finish_reason = hook or nil, hook and secret or nil, finish_reason
  redis.pcall('ZREM', key.outbox_dead, message)
  redis.pcall('HSET', key.outbox_entries, message, cjson.encode(entry))
  redis.pcall('ZADD', key.outbox, now, message)
end

-- Puts the end of a job into the outbox, if its tenant has webhooks, and either it wants all ends, or the job names an
-- address.
local function note_end(key, id, state, hook, secret, finish_reason)
  if is_batch_row(id) then return end
  local wants_all = redis.pcall('HMGET', key.webhook, 'jobs')[1]
  if not wants_all or wants_all ~= '1' and not hook then return end
  note_webhook(key, id, END_TYPES[state], state, now_ms(), hook, secret, finish_reason)
end

-- Puts the end of a batch into the outbox, if its tenant has webhooks.
local function note_batch_end(key, id, state, now, hook, secret)
  if not redis.pcall('HMGET', key.webhook, 'jobs')[1] then return end
  note_webhook(key, id, 'batch.' .. state, state, now, hook ~= '' and hook, secret)
end

local function forget_webhook(key, id)
  redis.pcall('ZREM', key.outbox, message_of(id))
  redis.pcall('ZREM', key.outbox_dead, message_of(id))
  redis.pcall('HDEL', key.outbox_entries, message_of(id))
end
