"""The fence inside SGLang: a general plug-in for both roles of a prefill/decode pair.

SGLang finds ``plugin.activate`` through the entry point group ``sglang.srt.plugins``. ``points.py`` names what is
hooked, ``wiring.py`` what each hook does, ``prefill.py`` and ``decode.py`` what the guard remembers on either side.
"""
