"""A scenario for every combination of some settings: ``points`` says which, ``rows`` simulates one, ``runner`` has
them done by any ``concurrent.futures`` executor, ``processes`` makes one of local processes, ``store`` keeps the rows.
"""
