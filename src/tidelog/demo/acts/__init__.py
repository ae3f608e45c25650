"""The acts of the tour: one for each surface, and one for the pipeline."""
