-- DEPTH: how many messages a queue has.
-- KEYS: 1 queue
return num_messages(KEYS[1])
