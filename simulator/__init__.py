"""clustersim: a discrete-event simulator of distributed training steps on GPU and TPU clusters."""

__version__ = "0.1.0"
