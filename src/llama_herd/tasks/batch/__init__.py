"""Rows of a batch: requests, replies and what is done, wherever rows come from and answers go."""
