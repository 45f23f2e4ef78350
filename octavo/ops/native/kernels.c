/* All kernels for one instruction set: build.py compiles this file once for each, with VARIANT naming it. */
#include "linear.c"
#include "elementwise.c"
#include "attention.c"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

/* In the order of `Op` in binding.py. */
const kernel JOIN(kernels_, VARIANT)[] = {linear, rms_norm, gate, rope_and_write, argmax, attention};
