"""What a communication library does with a collective: the algorithm and protocol it picks, the time that takes."""
