"""Parts of the bench of the pipeline."""
