"""What the tests of mesh and of its daemon share."""
