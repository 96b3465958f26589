"""What comes after training: which model is active, whether it may be accepted, sweeps, bundles, plots."""
