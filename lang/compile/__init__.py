"""Programs as data: traced with placeholders for their arguments, optimised, printed, estimated, run anywhere."""
