"""What serves clients: connections, polling, administration, snapshots."""
