"""Agent rollouts over plain HTTP and in WebSocket mode, with a client that counts: for the demo and the bench.

* :mod:`~proxy.rollout.dialogue` is the client: one conversation, each way of having it;
* :mod:`~proxy.rollout.meter` counts what it sends, on its sockets;
* :mod:`~proxy.rollout.measure` runs a rollout to its end, and says what it took;
* :mod:`~proxy.rollout.text` makes up what tools and users say;
* :mod:`~proxy.rollout.screen` shows how far it is, and :mod:`~proxy.rollout.stopping` ends it at Ctrl-C.
"""
