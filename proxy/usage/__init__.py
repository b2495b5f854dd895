"""Usage: a record of each turn for sinks outside, written off the turn.

A turn's record waits in memory until the next flush, then in a spool on disk until every sink has taken it, in reading
order::

    ledger                  the observer: takes records, flushes them, owns the tasks
    ├─ record                   what a turn's record says
    ├─ shelf                    the spools of this process, and those that others left behind
    │   └─ spool                    one folder of segments, and how far each sink is in them
    │       └─ segment                  records as bytes that can be found torn
    └─ delivery                 one sink: takes in batches, again and again until it works
        ├─ jsonlines                a file with rotation
        ├─ webhook                  HTTP
        ├─ sqlite, postgres         tables (their statements: columns)
        └─ thread                   where what blocks is done

What is in a record: sizes, counts, times, ids, and what headers of the handshake say that the operator has named. No
content, no keys, nothing made of keys.
"""
