"""The forms in which a matrix is kept and multiplied."""
