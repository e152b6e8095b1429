-- EMIT: append the events of one step, each to the stream of its own job, and publish them.
-- KEYS: for each tenant its leases and those of its outbox (4), then for each entry: job record, event stream
-- ARGV: 1 owner, 2 lease (ms), 3 life of an ended job (s),
--       4 tokens and 5 time (ms) after which an attempt is sound: earlier deaths no longer count,
--       6 number of tenants, then for each the prefix of its channels, then for each entry: number of its tenant,
--       id, epoch, seq, index of its first token, number of tokens, kind, final state, event
-- Answers, one for each entry: ok | duplicate | a refusal {kind, recorded seq, recorded n, reason}, of the kind
--       fenced | finished | cancelled | gap | damaged (its record or its stream is gone: only `end` is accepted) | error
-- After a refusal all later entries of the same job in this call get it, too. Other jobs are not affected.
local owner, ttl_s, sound_tokens, sound_ms = ARGV[1], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local num_tenants = tonumber(ARGV[6])
local now = now_ms()
local lease = now + ARGV[2]
local renewed, refused, answers = {}, {}, {} -- by tenant and id; by record; by place
local leases_of, outbox_of = {}, {} -- by tenant
for tenant = 1, num_tenants do
  renewed[tenant], leases_of[tenant], outbox_of[tenant] = {}, KEYS[5 * tenant - 4], outbox_in(KEYS, 5 * tenant - 3)
end

-- Returns nothing for an event that is the next one, and whose tokens begin where the recorded ones end.
-- Of a job that is to be cancelled no token is taken any more, but the end, and before it what was withheld.
local function refusal(record, leases, id, epoch, seq, i, num_ids, kind)
  local state, recorded, n, cancel = record[3], tonumber(record[4]) or 0, tonumber(record[5]) or 0, record[6]
  -- The record of a job with a lease never expires. Whose it was nobody knows, but the owner alone goes on with it.
  if not state and redis.call('ZSCORE', leases, id) then return kind ~= 'end' and {'damaged', seq - 1, i, ''} or nil end
  if record[1] ~= owner or record[2] ~= epoch then return {'fenced', recorded, n, ''} end
  if seq <= recorded then return 'duplicate' end
  if state ~= 'running' then return {'finished', recorded, n, state} end
  if cancel and kind ~= 'end' and (kind == 'started' or num_ids > 0) then return {'cancelled', recorded, n, cancel} end
  if seq > recorded + 1 or i ~= n then return {'gap', recorded, n, ''} end
end

-- Returns the number of deaths that count against the job once this event is written.
local function attempts_after(record, n)
  local is_sound = n - (tonumber(record[9]) or 0) >= sound_tokens or now - (tonumber(record[8]) or now) >= sound_ms
  return is_sound and '0' or record[7] or '0'
end

local function close(tenant, job, events, id, state, hook, secret, event)
  redis.call('HSET', job, 'state', state, 'lease', 0)
  local life_s = life_of(id, state, ttl_s)
  redis.call('EXPIRE', job, life_s)
  redis.call('EXPIRE', events, life_s)
  redis.call('ZREM', leases_of[tenant], id)
  renewed[tenant][id] = nil
  note_end(outbox_of[tenant], id, state, hook, secret, note_outcome(job, event))
end

local function emit(job, events, tenant, id, epoch, seq, i, num_ids, kind, state, event)
  local record = redis.pcall('HMGET', job,
    'owner', 'epoch', 'state', 'seq', 'n', 'cancel', 'attempts', 'started_ms', 'started_n', 'webhook',
    'webhook_secret')
  if record.err then return {'error', 0, 0, record.err} end
  local answer = refusal(record, leases_of[tenant], id, epoch, seq, i, num_ids, kind)
  if answer then return answer end

  -- First, and by pcall: if this stream is broken, only this job fails, and nothing has been written yet.
  local place = string.format('%d-0', seq)
  local added
  if seq == 1 or kind == 'end' then
    added = redis.pcall('XADD', events, place, 'e', event)
  else
    added = redis.pcall('XADD', events, 'NOMKSTREAM', place, 'e', event)
    if not added then return {'damaged', seq - 1, i, ''} end
  end
  if type(added) == 'table' and added.err then
    -- If somebody has replaced the stream by another type, no end can be written: only the record is closed.
    if kind == 'end' and string.find(added.err, 'WRONGTYPE', 1, true) then
      close(tenant, job, events, id, state, record[10], record[11], event)
      return {'finished', seq - 1, i, state}
    end
    return {'error', seq - 1, i, added.err}
  end

  if num_ids > 0 then
    local n = i + num_ids
    redis.call('HSET', job, 'seq', seq, 'lease', lease, 'n', n, 'attempts', attempts_after(record, n))
  else
    redis.call('HSET', job, 'seq', seq, 'lease', lease)
  end
  renewed[tenant][id] = true
  if kind == 'started' then
    redis.call('HINCRBY', job, 'starts', 1)
    redis.call('HSET', job, 'computing', epoch, 'started_ms', now, 'started_n', i)
  elseif kind == 'end' then
    if not record[3] then redis.call('HSET', job, 'epoch', epoch, 'n', i, 'attempts', 0, 'starts', 0) end
    close(tenant, job, events, id, state, record[10], record[11], event)
  end
  redis.call('PUBLISH', ARGV[6 + tenant] .. id, event)
  return 'ok'
end

-- If a key of its tenant holds something else, that is the answer for this entry, and the others go on.
local function attempt(job, events, tenant, id, epoch, seq, i, ...)
  local is_done, answer = pcall(emit, job, events, tenant, id, epoch, seq, i, ...)
  return is_done and answer or {'error', seq - 1, i, type(answer) == 'table' and answer.err or tostring(answer)}
end

for entry = 0, (#KEYS - 5 * num_tenants) / 2 - 1 do
  local k, a = 5 * num_tenants + 1 + 2 * entry, num_tenants + 7 + 9 * entry
  local job = KEYS[k]
  local answer = refused[job] or attempt(job, KEYS[k + 1], tonumber(ARGV[a]), ARGV[a + 1], ARGV[a + 2],
    tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), tonumber(ARGV[a + 5]), ARGV[a + 6], ARGV[a + 7], ARGV[a + 8])
  if type(answer) == 'table' then refused[job] = answer end
  answers[entry + 1] = answer
end

local function renew(tenant)
  local scores = {}
  for id in pairs(renewed[tenant]) do
    scores[#scores + 1] = lease
    scores[#scores + 1] = id
  end
  local added = #scores > 0 and redis.pcall('ZADD', leases_of[tenant], unpack(scores))
  return type(added) == 'table' and added.err
end

for tenant = 1, num_tenants do
  local wrong = renew(tenant)
  for entry = 0, wrong and #answers - 1 or -1 do
    local a = num_tenants + 7 + 9 * entry
    if tonumber(ARGV[a]) == tenant and answers[entry + 1] == 'ok' then
      answers[entry + 1] = {'error', tonumber(ARGV[a + 3]) - 1, tonumber(ARGV[a + 4]), wrong}
    end
  end
end
return answers
