-- Whether a job is the row of a batch, by its id. Its answer tells of its end, so no list and no webhook does.
local function is_batch_row(id) return string.sub(id, 1, 6) == 'batch-' end
