"""Models from anywhere: one file per source, for training and for audits. None imports torch before it is used."""
