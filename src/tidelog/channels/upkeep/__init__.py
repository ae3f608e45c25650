"""The owner's half: takes what fronts ask for; ends streams, erases, revokes, prunes, verifies."""
