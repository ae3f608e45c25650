"""What the owner of the log does by itself: webhooks, retention, closing deliveries, verifying."""
