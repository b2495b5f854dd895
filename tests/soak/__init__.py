"""Mixed load for as long as one likes, and what is left of it: `python -m tests.soak --minutes 30`."""
