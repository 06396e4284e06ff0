"""A schedule as a table and a picture, before any training."""
