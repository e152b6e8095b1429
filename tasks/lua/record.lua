-- Makes the record of a job that has just been accepted, and notes that it waits.
local function write_record(job, pending, id, now, body, queue, envelope, deadline_ms)
  redis.call('HSET', job,
    'state', 'queued', 'body', body, 'queue', queue, 'envelope', envelope, 'submitted_ms', now,
    'epoch', 0, 'seq', 0, 'n', 0, 'lease', 0, 'attempts', 0, 'starts', 0, 'pushes', 0, 'waits', 0)
  if deadline_ms ~= '' then redis.call('HSET', job, 'deadline_ms', deadline_ms) end
  redis.call('ZADD', pending, now, id)
end
