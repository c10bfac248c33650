"""What feeds a node and does what it commands, without a clock. Live and simulated runs share it."""
