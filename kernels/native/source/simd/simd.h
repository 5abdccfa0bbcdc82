/* Vectors of the variant that is compiled: avx512.h with BOUGH_AVX512 defined, else avx2.h. */
#pragma once

#ifdef BOUGH_AVX512
#include "avx512.h"
#else
#include "avx2.h"
#endif
