"""Agents and SDKs that others wrote, at work through Slipstream."""
