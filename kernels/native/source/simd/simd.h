/* Vectors of the variant that is compiled: neon.h on ARM64, avx512.h with BOUGH_AVX512 defined, else avx2.h. */
#pragma once

#if defined(__aarch64__)
#include "neon.h"
#else
#ifdef BOUGH_AVX512
#include "avx512.h"
#else
#include "avx2.h"
#endif
#include "x86.h"
#endif
