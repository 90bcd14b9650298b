"""The lab: real programs on virtual hosts whose links have known rates. Linux, with ``ip``, ``tc`` and ``unshare``.

``fabric`` says what to build, ``shaped`` builds it, runs programs on it and leaves nothing behind, ``inside`` is the
process that does so within namespaces of its own, ``model`` is the same fabric as the simulator's network.
"""
