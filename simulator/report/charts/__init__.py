"""What each chart of a step shows, as frozen values: its series, and its finding as a sentence. Draws nothing.

One pure function per chart. ``report.html`` draws the values for a browser, ``report.pictures`` for a file.
"""
