"""Device host processes: start, supervision, requests to them, and replacement after a failure."""
