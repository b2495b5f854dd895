"""`slipstream bench`: what WebSocket mode saves on an operator's own backend, measured against plain HTTP.

:mod:`~proxy.bench.workload` says what a rollout consists of, :mod:`~proxy.rollout` runs it. :mod:`~proxy.bench.run` does so
again and again, each way of talking in turn, with servers that are :mod:`~proxy.bench.children` and, if it is told to, through a
:mod:`~proxy.bench.relay` that delays as a :mod:`~proxy.bench.link` would. :mod:`~proxy.bench.samples` tells differences from
noise, and :mod:`~proxy.bench.report` says what came of it.
"""
