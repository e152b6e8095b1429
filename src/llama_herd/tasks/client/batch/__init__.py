"""`Client.batch`: many jobs, of which some are under way at a time. For files see `tasks.batch`."""
