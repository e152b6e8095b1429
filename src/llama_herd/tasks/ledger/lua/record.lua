-- Makes the record of a job that has just been accepted, and lets it wait. Returns when it is due.
-- `new`: what came: body, envelope, queue, deadline_ms (+ and ms after it is due, or ''), not_before (ms or ''), tokens
-- (estimated), lane: what follows the queue's name in the name of the list in which its message waits; webhook, secret:
-- where to tell of its end ('': not at an address of its own), and what that is signed with ('': the tenant's); keep_s: how
-- long it is kept once it has ended ('': as all are); metadata: the client's notes as JSON ('': none).
-- `bare`: 1 if a bare message brought the job, which carries the prompt itself; 0 if SUBMIT did, which pushes its first
-- message as soon as the job is due. `counts`: see check_counts.
-- Raises an error, and writes nothing, if it cannot be completed.
-- needs: waiting
local function write_record(key, id, now, new, bare, counts)
  local due, deadline_ms = math.max(now, tonumber(new.not_before) or 0), new.deadline_ms
  if string.sub(deadline_ms, 1, 1) == '+' then deadline_ms = string.format('%.0f', due + string.sub(deadline_ms, 2)) end
  check_counts(key, new.queue, new.tokens, counts)
  begin_to_wait(key, id, due, due > now,
    {queue = new.queue, lane = new.lane, tokens = new.tokens, deadline_ms = deadline_ms})
  redis.call('HSET', key.job,
    'state', 'queued', 'body', new.body, 'queue', new.queue, 'lane', new.lane, 'envelope', new.envelope,
    'tokens', new.tokens, 'submitted_ms', now, 'due_ms', due, 'bare', bare,
    'epoch', 0, 'seq', 0, 'n', 0, 'lease', 0, 'deaths', 0, 'attempts', 0, 'waits', 0,
    'pushes', bare == 0 and due <= now and 1 or 0)
  if deadline_ms ~= '' then redis.call('HSET', key.job, 'deadline_ms', deadline_ms) end
  if new.webhook ~= '' then redis.call('HSET', key.job, 'webhook', new.webhook) end
  if new.secret ~= '' then redis.call('HSET', key.job, 'webhook_secret', new.secret) end
  if new.keep_s ~= '' then redis.call('HSET', key.job, 'keep_s', new.keep_s) end
  if new.metadata ~= '' then redis.call('HSET', key.job, 'metadata', new.metadata) end
  return due
end
