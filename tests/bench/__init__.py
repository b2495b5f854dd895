"""What things cost, counted; and tests of `slipstream bench`."""
