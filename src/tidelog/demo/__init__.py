"""The guided tour: every surface and the pipeline, for real, on a directory of its own."""
