"""What serves daemons: connections, presence, HTTP routes, history, delivery."""
