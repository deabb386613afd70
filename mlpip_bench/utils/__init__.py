"""What every layer uses: errors, files, locks, progress, the machine."""
