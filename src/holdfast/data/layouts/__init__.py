"""Sets of the literature in the folders they are published in."""
