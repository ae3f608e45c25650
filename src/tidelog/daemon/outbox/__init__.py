"""What this daemon accepted and has to deliver, and the work of delivering it."""
