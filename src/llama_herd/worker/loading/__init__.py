"""A model on its device, and the memory that it takes."""
