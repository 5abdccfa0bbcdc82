"""Contests with peers on a CPU: llama.cpp, OpenVINO GenAI, vLLM, transformers, guidance, outlines, SGLang's language.

Names of peers and workloads come in; ratios from alternating runs go out.
"""
