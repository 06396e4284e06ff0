"""What is done to gradients: summed over ranks, rescaled at a window's end, kept apart for each loss term."""
