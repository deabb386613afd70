"""What tests of several packages build or call: one of each."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
