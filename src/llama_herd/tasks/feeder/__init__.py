"""Runs the batches that came in over HTTP: whichever gateway is there feeds them."""
