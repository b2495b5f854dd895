"""Slipstream: the Responses API's WebSocket mode, in front of model servers that only speak HTTP.

A turn, in reading order (what is indented is the core: it does no I/O, has no clock, and orders what the others do)::

    downstream            a client's WebSocket: bytes in and out, frames, limits
    └─ connection         tells its session what happens, and carries out what comes of it
        ├─ session              one connection's state machine: facts in, orders out (what it knows: state)
        │   ├─ intake               what a client says: asked for in its lane's order, or about what runs
        │   │   ├─ messages             a `response.create`, decoded one level deep
        │   │   └─ controls             cancel, interrupt, steer, inject
        │   ├─ lanes                what runs and what waits, in each lane's order
        │   ├─ turns                a create becomes a turn: its parent, its items, its fields
        │   │   ├─ chain                what is remembered: responses, and what they share
        │   │   │   └─ transcript           the items behind a response
        │   │   ├─ store                what outlives the connection
        │   │   ├─ routes               which backend serves its model, and where its chain is
        │   │   └─ request              the request upstream, spliced from bytes that are at hand
        │   ├─ compacting           a long conversation becomes a short one first (compaction: its items)
        │   ├─ reply                the answer: relayed, or begun and ended by the proxy
        │   │   └─ relay                the backend's events become frames, mostly byte for byte
        │   │       ├─ sse                  bytes become events, wherever they are cut
        │   │       ├─ shapes               does this event lack anything?
        │   │       ├─ gaps                 what an event lacks is put in front of it
        │   │       ├─ responses            complete Response objects
        │   │       ├─ terminals            what is kept of how it ended
        │   │       └─ refusals             what backends say when they refuse (diagnosis: what they mean)
        │   ├─ outliving            the client is gone, and a response may end all the same
        │   └─ endings              completed, stopped or failed: what is remembered and said
        │       ├─ steering             what a response was steered with goes into its successor
        │       └─ rescue               an error becomes the one frame that every client understands
        └─ backends             one HTTP request per turn
            └─ fleet                the replicas of a backend: who is asked, and who goes on in whose place
                ├─ balance              where a new chain goes
                ├─ health               who can be asked
                ├─ gate                 how many at once
                └─ upstream             one server, asked for responses
                    └─ pool                 connections that are kept, or opened ahead
                        └─ wire                 HTTP/1.1, read in the protocol's callback

Beside it: :mod:`~proxy.server` decides who comes in by which way. :mod:`~proxy.stored` answers plain HTTP about responses,
from what outlives its connection (:mod:`~proxy.owners` says whose it is, :mod:`~proxy.custody` that it can be done
without, :mod:`~proxy.protocol.expand` has creates refer to it, :mod:`~proxy.protocol.kept` shows it,
:mod:`~proxy.protocol.filling` fills what a backend leaves out of its answers); :mod:`~proxy.compactor` answers one request
that backends lack, :mod:`~proxy.passthrough` hands on all others (:mod:`~proxy.plain` is its client,
:mod:`~proxy.credentials` what a backend gets of headers). :mod:`~proxy.probes` asks replicas whether they are there.
:mod:`~proxy.exchange` holds a request's limits, :mod:`~proxy.observe` says who wants to know, :mod:`~proxy.metrics` (made by
:mod:`~proxy.families`; of replicas :mod:`~proxy.replicametrics`, of usage
:mod:`~proxy.usagemetrics`) and :mod:`~proxy.logs` do (:mod:`~proxy.lag` looks at the loop), :mod:`~proxy.live` keeps what goes
on now (:mod:`~proxy.picture`, in words :mod:`~proxy.explain`; what was said is cut by :mod:`~proxy.protocol.inspection`),
:mod:`~proxy.admin` shows it, with a page (:mod:`~proxy.livepage`) that as many may watch as :mod:`~proxy.watchers` lets;
:mod:`~proxy.top` is that page in a terminal.
:mod:`~proxy.tracing` is one more of them and an extra (:mod:`~proxy.otlp` exports its spans, :mod:`~proxy.conventions`
names what is in them); what the others know of traces is :mod:`~proxy.propagation`. :mod:`~proxy.usage` is another: records
of turns for files, servers and databases. :mod:`~proxy.config` is what an operator can choose (made of
:mod:`~proxy.sections`: of backends :mod:`~proxy.served`, of usage :mod:`~proxy.usageconfig`; read by
:mod:`~proxy.configfile`, written as :mod:`~proxy.values` and :mod:`~proxy.references` say), :mod:`~proxy.app` starts and
drains it all (:mod:`~proxy.garbage` has what is left collected), :mod:`~proxy.workers` several times over,
:mod:`~proxy.cli` is the command. :mod:`~proxy.rollout` is a client that counts what it does: :mod:`~proxy.demo` shows with
it what all this is good for, :mod:`~proxy.bench` measures it.

Imports go down only; the layers are spelt out, and checked, in ``pyproject.toml``.
"""

__version__ = "0.1.0"
