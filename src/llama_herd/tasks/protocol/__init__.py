"""What travels: jobs, events, results, and the messages and statuses around them."""
