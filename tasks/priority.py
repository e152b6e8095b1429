"""How urgent a job can be: higher goes first."""

MIN_PRIORITY, MAX_PRIORITY = -10, 10
