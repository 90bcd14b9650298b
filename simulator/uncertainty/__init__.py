"""How far an answer may be off, and which input moves it most: steps simulated with inputs at other values."""
