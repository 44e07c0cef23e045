"""A model and data brought to the same terms before anything is measured: classes, preprocessing, kind of outputs."""
