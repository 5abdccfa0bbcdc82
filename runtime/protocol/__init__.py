"""Types that cross layers and processes: settings, requests, sampling parameters, programs, templates, errors.

Plain data (msgspec), validated when it is made, which is also the wire format between processes; and the evaluation of
its conditions and patterns. No torch.
"""
