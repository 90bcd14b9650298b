"""Files that people already have -> a commented scenario: Hugging Face, DeepSpeed, torchtitan, Megatron-LM, accelerate.

One module for each kind of file, each a plain function from a Sheet (options, extra settings) to a Draft;
``kinds.KINDS`` has a line for each. ``writer`` turns a Draft into YAML.
"""
