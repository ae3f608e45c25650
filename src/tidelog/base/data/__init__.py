"""Values and their bytes: strict and canonical JSON, digests, seals."""
