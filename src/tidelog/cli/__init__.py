"""The `tidelog` command: a file or a folder for each command group, and what they share."""
