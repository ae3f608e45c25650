"""Pure and shared with daemons: frames, sessions, fingerprints, the outbox's rules."""
