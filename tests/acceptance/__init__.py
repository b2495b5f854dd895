"""The behaviours that Open Responses asks of a server, in front of a well-formed backend and of a real one."""
