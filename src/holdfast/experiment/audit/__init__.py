"""One command for any model: see ``holdfast audit --help``. Gates are read before torch is imported."""
