"""Peers on this processor: llama.cpp, OpenVINO GenAI, vLLM, transformers, guidance, outlines, SGLang's language.

Names of peers and workloads come in; ratios, taken in turns, go out.
"""
