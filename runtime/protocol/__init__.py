"""The types that cross a border: requests, sampling parameters, programs, conditions, templates, errors.

Plain data (msgspec), validated when made, and at the same time the wire format between processes. No torch.
"""
