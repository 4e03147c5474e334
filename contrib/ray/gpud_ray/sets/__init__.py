"""Task sets with irregular memory: plan them, simulate them in virtual time, run them on nodes."""
