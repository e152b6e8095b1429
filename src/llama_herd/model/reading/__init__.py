"""How what others wrote is read: within bounds, with errors that name the place."""
