"""Charts of a step as static pictures by matplotlib, one function per chart: the same values and findings as the page.

Needs the extra ``plot``, imported only when a picture is asked for.
"""
