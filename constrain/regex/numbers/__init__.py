"""Sets of numbers between bounds and with divisors, as languages of their decimal texts.

Bounds come in, languages of JSON numbers go out, exact to the last digit.
"""
