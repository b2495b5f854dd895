"""Tests of the rollouts that the demo and the bench measure."""
