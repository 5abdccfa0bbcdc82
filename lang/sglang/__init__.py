"""SGLang's names: its endpoint, engine, runtime and options, for programs written against it.

Nothing else imports this folder but the facade; everything here calls the words of `lang`.
"""
