"""What the owner of the log decides about messages, and the state it decides by."""
