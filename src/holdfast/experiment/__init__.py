"""Whole experiments: recipes, single runs with their report, comparisons, the demonstration."""
