"""A scenario for every combination of some settings: ``points`` says which, ``rows`` simulates one, ``runner`` has
them done by any ``concurrent.futures`` executor, ``store`` keeps the rows.

Executors: ``processes`` makes one of local processes, ``cluster`` one of a Dask cluster's workers. For those ``parcel``
sends the scenario's files along, ``environment`` and ``fleet`` see that a worker makes the rows that we would make.
"""
