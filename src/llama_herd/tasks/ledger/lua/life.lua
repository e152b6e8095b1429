-- The answer of a batch's row is kept until the batch has written it and purges the job, though nobody may run the batch
-- for days. What was cancelled has no answer.
local ROW_LIFE_S = 7 * 86400

-- How long an ended job is kept (s).
local function life_of(id, state, ttl_s)
  local is_answer = state ~= 'cancelled' and string.sub(id, 1, 6) == 'batch-'
  return is_answer and math.max(ttl_s, ROW_LIFE_S) or ttl_s
end
