"""Pages, their code blocks and their citations, for the tests of the documentation."""
