"""What every room may use and what uses nothing of ours."""
