"""Tests of `slipstream demo`."""
