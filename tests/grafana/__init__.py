"""Dashboards, rules and alerts: that they are well made, and that each expression says something about a real run."""
