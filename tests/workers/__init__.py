"""Tests of :mod:`proxy.workers`."""
