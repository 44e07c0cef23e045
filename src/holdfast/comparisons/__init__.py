"""Many trainings: recipes, grids, statistics over seeds; and one training as the command line runs it."""
