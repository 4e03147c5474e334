"""Device hosts: started, supervised, given modules and jobs, and replaced when they fail."""
