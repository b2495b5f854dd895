"""Tests of the records of turns and their way to the sinks."""
