"""What the tests of metrics, alerts and traces share."""
