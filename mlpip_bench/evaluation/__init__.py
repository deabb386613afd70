"""Measuring a trained model: protocols, metrics, predictions."""
