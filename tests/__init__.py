"""Tests of the product; they mirror its tree."""
