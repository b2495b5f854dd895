"""What the tests with real servers and real clients share: installing, starting and judging them."""
