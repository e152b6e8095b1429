-- EMIT: append the events of one step, each to the stream of its own job, and publish them.
-- needs: clock, close, caught, full
-- args: owner, lease_ms#, ttl_s# (life of an ended job), failed_s# (its least, if it failed),
--       sound_tokens#, sound_ms# (after so many, or so long, an attempt is sound: earlier deaths no longer count)
-- list tenants: keys leases, webhook, outbox, outbox_entries, outbox_dead, kept, ended, failed;
--       args channels (the prefix of its channels)
-- list entries: keys job, events; args tenant# (its place in the list), id, epoch, seq#, i# (index of its first token),
--       num_ids#, kind, state (the final one), event
-- Answers, one for each entry: ok | duplicate | a refusal {kind, recorded seq, recorded n, reason}, of the kind
--       fenced | finished | cancelled | gap | damaged (its record or its stream is gone: only `end` is accepted) | error
-- After a refusal all later entries of the same job in this call get it, too. Other jobs are not affected.
local now = now_ms()
local lease = now + lease_ms
local refused, answers = {}, {} -- by record; by place
for _, tenant in ipairs(tenants) do
  tenant.renewed, tenant.ttl_s, tenant.failed_s = {}, ttl_s, failed_s
end

-- Returns nothing for an event that is the next one, and whose tokens begin where the recorded ones end.
-- Of a job that is to be cancelled no token is taken any more, but the end, and before it what was withheld.
local function refusal(record, leases, one)
  local state, recorded, n, cancel = record[3], tonumber(record[4]) or 0, tonumber(record[5]) or 0, record[6]
  local kind, seq = one.kind, one.seq
  -- The record of a job with a lease never expires. Whose it was nobody knows, but the owner alone goes on with it.
  if not state and redis.call('ZSCORE', leases, one.id) then
    return kind ~= 'end' and {'damaged', seq - 1, one.i, ''} or nil
  end
  if record[1] ~= owner or record[2] ~= one.epoch then return {'fenced', recorded, n, ''} end
  if seq <= recorded then return 'duplicate' end
  if state ~= 'running' then return {'finished', recorded, n, state} end
  if cancel and kind ~= 'end' and (kind == 'started' or one.num_ids > 0) then
    return {'cancelled', recorded, n, cancel}
  end
  if seq > recorded + 1 or one.i ~= n then return {'gap', recorded, n, ''} end
end

-- Returns the number of deaths that count against the job once this event is written.
local function deaths_after(record, n)
  local is_sound = n - (tonumber(record[9]) or 0) >= sound_tokens or now - (tonumber(record[8]) or now) >= sound_ms
  return is_sound and '0' or record[7] or '0'
end

local function end_job(tenant, one)
  redis.call('HSET', one.job, 'state', one.state, 'lease', 0)
  tenant.renewed[one.id] = nil
  close(tenant, one.job, one.events, one.id, one.state, one.event)
end

local function emit(one)
  local tenant, job, seq, i = tenants[one.tenant], one.job, one.seq, one.i
  local record = redis.pcall('HMGET', job,
    'owner', 'epoch', 'state', 'seq', 'n', 'cancel', 'deaths', 'started_ms', 'started_n')
  if record.err then return {'error', 0, 0, record.err} end
  local answer = refusal(record, tenant.leases, one)
  if answer then return answer end

  -- First, and by pcall: if this stream is broken, only this job fails, and nothing has been written yet.
  local place = string.format('%d-0', seq)
  local added
  if seq == 1 or one.kind == 'end' then
    added = redis.pcall('XADD', one.events, place, 'e', one.event)
  else
    added = redis.pcall('XADD', one.events, 'NOMKSTREAM', place, 'e', one.event)
    if not added then return {'damaged', seq - 1, i, ''} end
  end
  if type(added) == 'table' and added.err then
    -- If the stream has more events than the record knows of, or somebody has replaced it by another type, no end can
    -- be written: only the record is closed.
    local is_broken = string.find(added.err, 'WRONGTYPE', 1, true) or string.find(added.err, 'equal or smaller', 1, true)
    if one.kind == 'end' and is_broken then
      end_job(tenant, one)
      return {'finished', seq - 1, i, one.state}
    end
    return {'error', seq - 1, i, added.err}
  end

  if one.num_ids > 0 then
    local n = i + one.num_ids
    redis.call('HSET', job, 'seq', seq, 'lease', lease, 'n', n, 'deaths', deaths_after(record, n))
  else
    redis.call('HSET', job, 'seq', seq, 'lease', lease)
  end
  tenant.renewed[one.id] = true
  if one.kind == 'started' then
    redis.call('HINCRBY', job, 'attempts', 1)
    redis.call('HSET', job, 'computing', one.epoch, 'started_ms', now, 'started_n', i)
  elseif one.kind == 'end' then
    if not record[3] then redis.call('HSET', job, 'epoch', one.epoch, 'n', i, 'deaths', 0, 'attempts', 0) end
    end_job(tenant, one)
  end
  redis.call('PUBLISH', tenant.channels .. one.id, one.event)
  return 'ok'
end

-- If a key of its tenant holds something else, that is the answer for this entry, and the others go on.
local function attempt(one)
  local is_done, answer = pcall(emit, one)
  return is_done and answer or {'error', one.seq - 1, one.i, words_of(answer)}
end

if entries[1] then go_on_when_full(entries[1].job) end
for place, one in ipairs(entries) do
  local answer = refused[one.job] or attempt(one)
  if type(answer) == 'table' then refused[one.job] = answer end
  answers[place] = answer
end

local function renew(tenant)
  local scores = {}
  for id in pairs(tenant.renewed) do
    scores[#scores + 1] = lease
    scores[#scores + 1] = id
  end
  local added = #scores > 0 and redis.pcall('ZADD', tenant.leases, unpack(scores))
  return type(added) == 'table' and added.err
end

for number, tenant in ipairs(tenants) do
  local wrong = renew(tenant)
  for place, one in ipairs(wrong and entries or {}) do
    if one.tenant == number and answers[place] == 'ok' then answers[place] = {'error', one.seq - 1, one.i, wrong} end
  end
end
return answers
