"""Who may do what in Redis."""
