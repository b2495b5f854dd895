"""The live page in a real browser, with a real run behind it."""
