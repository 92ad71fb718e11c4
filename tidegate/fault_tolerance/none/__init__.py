"""No fault tolerance: for jobs that can never be asked for a snapshot."""
