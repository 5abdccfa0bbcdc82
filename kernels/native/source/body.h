/* The library, once a variant: all that is compiled with the vectors of `simd/simd.h`, and the table of what it offers. */
#pragma once

#include "variant.h"

#include "forward.h"
#include "linear/hadamard.h"
#include "linear/linear.h"
#include "sampling/sampling.h"

#define VARIANT(NAME)                                                                                                      \
    {                                                                                                                      \
        NAME, LANES, forward_pass, multiply_rows, mix_weight, read_row, sample_rows, sampling_bytes, workspace_bytes,       \
    }
