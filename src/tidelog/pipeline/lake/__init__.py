"""The lake on disk: Delta tables, their files, and the seals that show who wrote them."""
