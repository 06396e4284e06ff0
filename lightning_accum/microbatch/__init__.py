"""What a micro-batch holds and what its ``training_step`` returned."""
