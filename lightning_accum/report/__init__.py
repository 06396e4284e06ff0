"""Figures of what a training did."""
