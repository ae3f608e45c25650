"""What the owner of the log decides about submitted items, and the state it decides by."""
