"""What user code and the runtime agree on: functions, state and timer interfaces, sources, sinks, batches."""
