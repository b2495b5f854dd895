"""Tests of the sans-IO core: tables, dialogues and invariants, without a loop."""
