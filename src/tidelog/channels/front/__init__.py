"""What serves clients: connections and subscriptions, reads, HTTP routes, delivery."""
