// Vectors of floats, as wide as the CPU has them. The compiler may not contract or reorder (-ffp-contract=off, no fast
// math): every result below is the same IEEE operation wherever it is inlined, which batch invariance rests on.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kadence {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define KADENCE_AVX512 1
constexpr int WIDTH = 16, BLOCK_VECTORS = 4;
#elif defined(__AVX2__) && defined(__FMA__)
#define KADENCE_AVX2 1
constexpr int WIDTH = 8, BLOCK_VECTORS = 2;
#else
constexpr int WIDTH = 4, BLOCK_VECTORS = 4;
#endif
constexpr int BLOCK_ROWS = 6;
// A block of 6 rows x 4 vectors (2 where there are 16 registers) of sums stays in registers.

typedef float Vector __attribute__((vector_size(4 * WIDTH)));
typedef int32_t Integers __attribute__((vector_size(4 * WIDTH)));

inline Vector load(const float* from) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

inline void store(float* to, Vector v) { std::memcpy(to, &v, sizeof v); }

inline Vector splat(float x) { return x - Vector{}; }

inline Vector select(Integers mask, Vector yes, Vector no) {
  return (Vector)((mask & (Integers)yes) | (~mask & (Integers)no));
}

inline Vector larger(Vector a, Vector b) { return select(a < b, b, a); }

inline Vector multiply_add(Vector a, Vector b, Vector c) {
#if defined(KADENCE_AVX512)
  return (Vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(KADENCE_AVX2)
  return (Vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// WIDTH numbers of any type that states have, as floats.
inline Vector widen(const float* from) { return load(from); }

inline Vector widen(const c10::BFloat16* from) {
#if defined(KADENCE_AVX512)
  __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  return (Vector)_mm512_slli_epi32(bits, 16);
#elif defined(KADENCE_AVX2)
  __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return (Vector)_mm256_slli_epi32(bits, 16);
#else
  Vector v;
  for (int i = 0; i < WIDTH; ++i) v[i] = static_cast<float>(from[i]);
  return v;
#endif
}

inline Vector widen(const c10::Half* from) {
#if defined(KADENCE_AVX512)
  return (Vector)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(KADENCE_AVX2) && defined(__F16C__)
  return (Vector)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  Vector v;
  for (int i = 0; i < WIDTH; ++i) v[i] = static_cast<float>(from[i]);
  return v;
#endif
}

// The lanes in a fixed order.
inline float sum_of_lanes(Vector v) {
  float lanes[WIDTH];
  store(lanes, v);
  for (int half = WIDTH / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

inline float largest_lane(Vector v) {
  float lanes[WIDTH];
  store(lanes, v);
  for (int half = WIDTH / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] < lanes[i + half] ? lanes[i + half] : lanes[i];
  return lanes[0];
}

// 2^x for x <= 127; 0 below the normal numbers; exactly 1 for 0. Taylor's series on [-0.5, 0.5], error about 1e-7.
inline Vector exp2(Vector x) {
  const Vector lowest = splat(-126.0f), shifter = splat(12582912.0f);  // 1.5 * 2^23 rounds to an integer
  const Integers vanishes = x < lowest;
  x = select(vanishes, lowest, x);
  const Vector shifted = x + shifter;
  const Integers power = (Integers)shifted - (Integers)shifter;
  const Vector f = x - (shifted - shifter);
  Vector sum = splat(1.5403530e-4f);
  sum = multiply_add(sum, f, splat(1.3333558e-3f));
  sum = multiply_add(sum, f, splat(9.6181291e-3f));
  sum = multiply_add(sum, f, splat(5.5504109e-2f));
  sum = multiply_add(sum, f, splat(2.4022651e-1f));
  sum = multiply_add(sum, f, splat(6.9314718e-1f));
  sum = multiply_add(sum, f, splat(1.0f));
  const Vector found = (Vector)((Integers)sum + (power << 23));
  return select(vanishes, Vector{}, found);
}

inline float exp2(float x) { return exp2(splat(x))[0]; }

#if defined(KADENCE_AVX512)
// 16 x 16 numbers of 32 bits: rows to columns.
inline void transpose(__m512i (&r)[16]) {
  __m512i t[16], u[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    u[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int c = 0; c < 4; ++c) {  // u[4 i + c] holds columns c, 4 + c, 8 + c and 12 + c of rows 4 i to 4 i + 3
    const __m512i even_low = _mm512_shuffle_i32x4(u[c], u[4 + c], 0x88);
    const __m512i even_high = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(u[c], u[4 + c], 0xdd);
    const __m512i odd_high = _mm512_shuffle_i32x4(u[8 + c], u[12 + c], 0xdd);
    r[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    r[8 + c] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    r[4 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    r[12 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
}
#endif

}  // namespace kadence
