"""The live page in a terminal: `slipstream top`.

It looks at a proxy that runs elsewhere, through the feed of its live page. What it shows is made in modules that know no
terminal: :mod:`~proxy.top.updates` reads what the feed says, :mod:`~proxy.top.mirror` makes one picture of it,
:mod:`~proxy.top.rows` and :mod:`~proxy.top.detail` put that into lines, :mod:`~proxy.top.text` into units, without what a
terminal would obey. :mod:`~proxy.top.plain` prints it once, :mod:`~proxy.top.screen` keeps it on a screen
(:mod:`~proxy.top.table` is a list of any length in it); :mod:`~proxy.top.feed` listens, and :mod:`~proxy.top.watch` begins
and ends it all. Only :mod:`~proxy.top.screen` and :mod:`~proxy.top.table` need the extra `tui`.
"""
