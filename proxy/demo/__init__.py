"""`slipstream demo`: what WebSocket mode saves, measured on the spot, with no model server at hand.

A *simulation* of a stateless Responses backend stands in for the model server:

* :mod:`~proxy.demo.intake` reads and checks a request, as strictly as a server must that keeps nothing;
* :mod:`~proxy.demo.prefix` says how much of a prompt such a server would have had in its prefix cache;
* :mod:`~proxy.demo.agent` decides, without any model, what is answered: a tool call, or a last message;
* :mod:`~proxy.demo.stream` makes events and Response objects of it;
* :mod:`~proxy.demo.backend` serves all that over HTTP.

In front of it runs the real proxy. The client is that of :mod:`~proxy.rollout`: the same rollout over plain HTTP and in
WebSocket mode, about :mod:`~proxy.demo.task`. :mod:`~proxy.demo.report` puts what it took into words, and
:mod:`~proxy.demo.show` is the order in which it all happens.
"""
