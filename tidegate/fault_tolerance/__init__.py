"""Models of fault tolerance: what a task and the JobManager do so that a failure loses nothing."""
