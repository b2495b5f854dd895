"""`workers: N`: several processes that serve one address, and one that looks after them.

Each worker is a whole proxy with connections of its own; the kernel spreads clients over them (`SO_REUSEPORT`). The
supervisor serves no client: it starts workers, starts them again when they die, drains them, and answers for them all on
the operator's listener. They talk over one pair of sockets each::

    supervisor    starts, restarts and drains workers; serves the operator's listener
    ├─ sums           their metrics as one
    ├─ pictures       their live pictures as one
    └─ channel        carries what both sides say (messages), questions and answers too
        └─ worker         the other end: one process that serves clients
            └─ siblings       a response that is stored with another worker

Nothing goes over the channel per streamed event, nor per turn: figures go once a second and when somebody asks, pictures
while somebody watches, and a stored response when a client continues it on another worker.
"""
