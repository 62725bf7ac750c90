"""Looks at a running job from another terminal: `horoaccrun top` and `horoaccrun explain JOB`."""
