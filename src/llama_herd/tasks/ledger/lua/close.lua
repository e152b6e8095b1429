-- What becomes of a job's record once its final event is written.
-- needs: outbox, kept, ended

-- The answer of a batch's row is kept until the batch has written it and purges the job, though nobody may run the batch
-- for days. What was cancelled has no answer.
local ROW_LIFE_S = 7 * 86400

-- How long an ended job is kept (s): as long as it asks for, or else as all are. `failed_s`: the least, if it failed.
local function life_of(id, state, life_s, failed_s)
  local is_answer = state ~= 'cancelled' and is_batch_row(id)
  return math.max(life_s, is_answer and ROW_LIFE_S or 0, state == 'failed' and failed_s or 0)
end

-- The record tells how its job ended, so that whoever may read no events knows it, too.
local MAX_MESSAGE_BYTES = 2048

-- Shortens a text that is too long, between two characters: no character begins with the bits 10.
local function shortened(text)
  if #text <= MAX_MESSAGE_BYTES then return text end
  return string.match(string.sub(text, 1, MAX_MESSAGE_BYTES - 2), '^(.*)[^\128-\191]') .. '...'
end

local function error_in(event)
  local error = cjson.decode(event).error
  return cjson.encode({code = error.code, message = shortened(error.message), retriable = error.retriable})
end

-- Writes the outcome that a final event tells into the record. Returns its finish_reason.
local function note_outcome(job, event, now)
  local finish_reason = string.match(event, '"finish_reason":"(%a+)"')
  redis.call('HSET', job, 'ended_ms', now)
  if finish_reason then redis.call('HSET', job, 'finish_reason', finish_reason) end
  if finish_reason == 'error' then
    local is_read, error = pcall(error_in, event)
    if is_read then redis.call('HSET', job, 'error', error) end
  end
  return finish_reason
end

-- Lets a record that has just ended expire, with what its final event tells, and its message into the outbox.
-- `key`: the tenant's leases, outbox, kept, ended and failed; ttl_s, failed_s: how long its jobs are kept, and at least if
-- they failed.
local function close(key, job, events, id, state, event)
  local hook, secret, keep_s = unpack(redis.call('HMGET', job, 'webhook', 'webhook_secret', 'keep_s'))
  local life_s = life_of(id, state, tonumber(keep_s) or key.ttl_s, key.failed_s)
  redis.call('EXPIRE', job, life_s)
  redis.call('EXPIRE', events, life_s)
  redis.call('ZREM', key.leases, id)
  local now = now_ms()
  note_end(key, id, state, hook, secret, note_outcome(job, event, now))
  list_ended(key, id, state, now, life_s)
  note_kept(key, job, events, life_s)
end
