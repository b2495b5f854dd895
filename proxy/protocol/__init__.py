"""The sans-IO core: facts in, orders out.

Nothing below this package imports asyncio, aiohttp, logging, a clock, randomness or the environment. A
:class:`~proxy.protocol.session.Session` is given facts (:mod:`~proxy.protocol.events`) and answers each with orders
(:mod:`~proxy.protocol.effects`); whoever drives it carries those out. In the order in which a turn meets them:

``messages`` splits a client's frame into raw fields and items · ``intake`` gives it its place, or does at once what it says
about a response that runs · ``session`` starts the turn · ``turns`` and ``chain`` resolve ``previous_response_id`` to a
transcript · ``request`` splices the upstream body · ``sse`` cuts the answer into events · ``relay`` turns those into frames
and keeps what the next turn needs · ``gaps`` and ``responses`` fill what a backend leaves out · ``endings`` remembers the
response, or forgets what it continued · ``rescue`` says every error in the one form that all clients understand.

``rawjson`` is the floor they stand on: JSON taken apart one level at a time, its values never decoded.
"""
