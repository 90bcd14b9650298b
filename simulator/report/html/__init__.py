"""One offline HTML page about a step: verdict first, then charts by plotly, each with a table behind it.

Needs the extra ``report`` (jinja2 and plotly), imported only when a page is asked for. No network, no dates, no
random names: same answer, same bytes.
"""
