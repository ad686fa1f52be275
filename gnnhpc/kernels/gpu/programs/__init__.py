"""What Triton compiles: functions of which each program computes one row, or some."""
