"""Before renting: judge a scenario, and find the cheapest change that mends it by simulating changes.

``changes`` lists what could be set otherwise, ``search`` simulates it and ranks what helps, ``conditions`` reads
``--fail-if``. They build on ``simulator.answer`` and add no physics.
"""
