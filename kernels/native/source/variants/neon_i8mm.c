/* The library for ARM64 processors with products of signed bytes, and of these with unsigned ones. */
#if defined(__aarch64__)
#define NEON_DOT
#define NEON_I8MM
#include "../body.h"

const bough_variant bough_neon_i8mm = VARIANT("NEON-I8MM");
#endif
