/* The library for ARM64 processors with products of signed bytes. */
#if defined(__aarch64__)
#define NEON_DOT
#include "../body.h"

const bough_variant bough_neon_dot = VARIANT("NEON-DotProd");
#endif
