-- JOBS: some of the waiting or of the running jobs, by their place in the list.
-- KEYS: 1 pending, delayed, leases or pending:<list>, then the records of the jobs to look at
-- ARGV: 1 place to begin at, 2 most jobs to look at, 3 most jobs in the answer, 4 and 5 what a record's key has before
--       and after the id, 6 their queue ('': any), 7 what their ids begin with, 8 due at this time at the latest ('': any)
-- Answers: now, place to go on at (-1: the list is over), then for each job: id, state, queue, worker, tokens, attempts,
--       submitted, due, deadline. Without records among the keys: {declare, their keys}
local place, max_looks, max_finds = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local before, after, queue, prefix, due_ms = ARGV[4], ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local jobs = {}

local function look(key)
  local id = name_in(key, before, after)
  if string.sub(id, 1, #prefix) ~= prefix or not redis.call('ZSCORE', KEYS[1], id) then return end
  local record = redis.pcall('HMGET', key,
    'state', 'queue', 'worker', 'n', 'attempts', 'submitted_ms', 'due_ms', 'deadline_ms')
  if not record[1] or queue ~= '' and record[2] ~= queue then return end
  if due_ms and (tonumber(record[7]) or 0) > due_ms then return end
  jobs[#jobs + 1] = {id, unpack(record, 1, 8)}
end

local ids = #KEYS == 1 and redis.call('ZRANGE', KEYS[1], place, place + max_looks - 1) or {}
if #ids > 0 then return ask_for(ids, before, after) end
local num_looks = #KEYS - 1
for number = 1, num_looks do
  if #jobs >= max_finds then return {now_ms(), place + number - 1, unpack(jobs)} end
  look(KEYS[1 + number])
end
return {now_ms(), num_looks < max_looks and -1 or place + num_looks, unpack(jobs)}
