"""The live page in a terminal."""
