-- Makes the record of a job that has just been accepted, and lets it wait. Returns when it is due.
-- Its ARGV, from `at` on: body, envelope, deadline (ms, + and ms after it is due, or ''), not before (ms or ''), estimated tokens,
-- lane: the end of the name of the list in which its message waits (absent: the queue's plain list)
-- `bare`: 1 if a bare message brought the job, which carries the prompt itself; 0 if SUBMIT did, which pushes its first
-- message as soon as the job is due. `counts`: see check_counts.
-- `key.webhook`, `key.secret`: the address to tell of its end, and what that is signed with, if it names them.
-- Raises an error, and writes nothing, if it cannot be completed.
local function write_record(key, id, now, at, bare, counts)
  local body, envelope, deadline_ms, not_before, tokens, lane = unpack(ARGV, at, at + 5)
  local due = math.max(now, tonumber(not_before) or 0)
  if string.sub(deadline_ms, 1, 1) == '+' then deadline_ms = string.format('%.0f', due + string.sub(deadline_ms, 2)) end
  check_counts(key, key.queue, tokens, counts)
  begin_to_wait(key, id, due, due > now,
    {queue = key.queue, lane = lane, tokens = tokens, deadline_ms = deadline_ms})
  redis.call('HSET', key.job,
    'state', 'queued', 'body', body, 'queue', key.queue, 'lane', lane or '', 'envelope', envelope, 'tokens', tokens,
    'submitted_ms', now, 'due_ms', due, 'bare', bare,
    'epoch', 0, 'seq', 0, 'n', 0, 'lease', 0, 'attempts', 0, 'starts', 0, 'waits', 0,
    'pushes', bare == 0 and due <= now and 1 or 0)
  if deadline_ms ~= '' then redis.call('HSET', key.job, 'deadline_ms', deadline_ms) end
  if key.webhook and key.webhook ~= '' then redis.call('HSET', key.job, 'webhook', key.webhook) end
  if key.secret and key.secret ~= '' then redis.call('HSET', key.job, 'webhook_secret', key.secret) end
  return due
end
