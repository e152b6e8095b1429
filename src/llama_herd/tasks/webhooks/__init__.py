"""Webhooks: tenants are told of the ends of their jobs, by the Standard Webhooks specification."""
