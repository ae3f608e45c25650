"""What the page shows of each surface, of daemons' outboxes and of the lake."""
