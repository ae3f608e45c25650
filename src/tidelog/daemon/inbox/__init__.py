"""What was delivered to this member."""
