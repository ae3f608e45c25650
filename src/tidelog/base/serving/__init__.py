"""What the web room and a surface know of each other, and how they describe themselves."""
