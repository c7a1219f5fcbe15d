// Float functions built from +, *, / and sqrt alone, each rounded once, so that
// CPU and GPU give the same bits (the compilers are told not to fuse).
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/annotations.h"

namespace dynemb {

#if defined(__CUDA_ARCH__)
DYNEMB_HD float Mul(float a, float b) { return __fmul_rn(a, b); }
DYNEMB_HD float Add(float a, float b) { return __fadd_rn(a, b); }
DYNEMB_HD float Sqrt(float a) { return __fsqrt_rn(a); }
#else
DYNEMB_HD float Mul(float a, float b) { return a * b; }
DYNEMB_HD float Add(float a, float b) { return a + b; }
DYNEMB_HD float Sqrt(float a) { return sqrtf(a); }
#endif

template <size_t N>
DYNEMB_HD float Horner(const float (&c)[N], float x) {
  float value = c[0];
  for (size_t i = 1; i < N; ++i) value = Add(Mul(value, x), c[i]);
  return value;
}

// Natural logarithm of a positive normal float, within 2 units in the last
// place: x = 2^e m with m in [sqrt(1/2), sqrt(2)), and the minimax polynomial of
// log(1 + t) from S. Moshier's Cephes library (logf).
DYNEMB_HD float ExactLog(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  int exponent = static_cast<int>(bits >> 23) - 126;
  bits = (bits & 0x007FFFFFu) | 0x3F000000u;
  float m;  // in [0.5, 1)
  memcpy(&m, &bits, sizeof m);
  const bool small = m < 0.707106781186547524f;
  exponent -= small ? 1 : 0;
  float t = Add(small ? Add(m, m) : m, -1.0f);
  float z = Mul(t, t);
  const float c[] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                     -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                     2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
  float y = Mul(Mul(Horner(c, t), t), z);
  float e = static_cast<float>(exponent);
  y = Add(y, Mul(e, -2.12194440e-4f));
  y = Add(y, Mul(z, -0.5f));
  return Add(Add(t, y), Mul(e, 0.693359375f));
}

// |Phi^-1(p)| for a lower-tail probability p in (0, 1/2]: sqrt(2) erfinv(1 - 2p)
// by the single-precision polynomials of M. Giles, "Approximating the erfinv
// function", GPU Computing Gems, 2011. 1 - x^2 is taken as 4p(1-p), which keeps
// all bits in the tail.
DYNEMB_HD float HalfNormalQuantile(float p) {
  float w = -ExactLog(Mul(Mul(4.0f, p), Add(1.0f, -p)));
  const float centre[] = {2.81022636e-08f,  3.43273939e-07f, -3.5233877e-06f,
                          -4.39150654e-06f, 0.00021858087f,  -0.00125372503f,
                          -0.00417768164f,  0.246640727f,    1.50140941f};
  const float tail[] = {-0.000200214257f, 0.000100950558f, 0.00134934322f,
                        -0.00367342844f,  0.00573950773f,  -0.0076224613f,
                        0.00943887047f,   1.00167406f,     2.83297682f};
  // Both sides without a branch: loops over columns stay vectors. The clamps keep
  // the side that is not taken finite.
  float near = Horner(centre, Add(w < 5.0f ? w : 5.0f, -2.5f));
  float far = Horner(tail, Add(Sqrt(w > 5.0f ? w : 5.0f), -3.0f));
  float polynomial = w < 5.0f ? near : far;
  float x = Add(1.0f, -Mul(2.0f, p));
  return Mul(1.41421356237f, Mul(polynomial, x));
}

}  // namespace dynemb
