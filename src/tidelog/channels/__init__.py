"""The channels surface: Pusher-compatible publish/subscribe with mutable messages."""
