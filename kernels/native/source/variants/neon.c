/* The library for all ARM64 processors. */
#if defined(__aarch64__)
#include "../body.h"

const bough_variant bough_neon = VARIANT("NEON");
#endif
