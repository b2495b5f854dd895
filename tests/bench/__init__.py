"""What things cost, counted."""
