"""The VAE report as a study: its own runs with its mistakes on and off, and ours beside them. ``run.py`` starts it."""
