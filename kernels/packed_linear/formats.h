// Weights as they lie in a panel, and how a tile of rows is multiplied by one.
#pragma once

#include <ATen/ATen.h>

#include <cstring>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

// A tile is TILE_ROWS rows by VECTORS vectors of columns; its sums stay in registers over all of k.
#if defined(__AVX512F__)
constexpr int64_t LANES = 16, VECTORS = 4, TILE_ROWS = 6;  // 32 registers
#else
constexpr int64_t LANES = 8, VECTORS = 2, TILE_ROWS = 4;  // 16 registers
#endif
constexpr int64_t PANEL = LANES * VECTORS;  // columns whose weights lie side by side

using Vector = float __attribute__((vector_size(4 * LANES)));
using Words = uint32_t __attribute__((vector_size(4 * LANES)));

// One rounding where the CPU can, and never as a compiler sees fit.
inline Vector multiply_add(const Vector& x, const Vector& w, const Vector& sum) {
#if defined(__AVX512F__)
  return (Vector)_mm512_fmadd_ps((__m512)x, (__m512)w, (__m512)sum);
#elif defined(__AVX2__) && defined(__FMA__)
  return (Vector)_mm256_fmadd_ps((__m256)x, (__m256)w, (__m256)sum);
#else
  return sum + x * w;
#endif
}

inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline void prefetch(const void* weights, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(static_cast<const char*>(weights) + at, 0, 2);
}

// A format has rows of type Row and weights of type Stored, and a number of inputs that lie side by side, STEP.
// multiply: `sums` of R rows over `steps` steps of k. store: sums as outputs.
struct Float32 {
  using Row = float;
  using Stored = float;
  static constexpr int64_t STEP = 1;  // panel [k][columns]

  template <int R, int V>
  static void multiply(const float* const* rows, const float* weights, int64_t steps, Vector (&sums)[R][V]) {
    const int64_t panel = steps * V * LANES;
    for (int64_t k = 0; k < steps; ++k, weights += V * LANES) {
      prefetch(weights + panel, sizeof(Vector) * V);
      Vector w[V];
      for (int v = 0; v < V; ++v) std::memcpy(&w[v], weights + v * LANES, sizeof w[v]);
      for (int r = 0; r < R; ++r) {
        const Vector x = Vector{} + rows[r][k];
        for (int v = 0; v < V; ++v) sums[r][v] = multiply_add(x, w[v], sums[r][v]);
      }
    }
  }

  static void store(float* to, const Vector& sums) { std::memcpy(to, &sums, sizeof sums); }
};

// Two steps of k: `pair` are two inputs of a row, a word of `w` is two weights of a column.
template <int V>
inline void multiply_add_pairs(uint32_t pair, const Words (&w)[V], Vector (&sums)[V]) {
#if defined(__AVX512BF16__)
  const auto x = (__m512bh)_mm512_set1_epi32(static_cast<int>(pair));
  for (int v = 0; v < V; ++v) sums[v] = (Vector)_mm512_dpbf16_ps((__m512)sums[v], x, (__m512bh)(__m512i)w[v]);
#else
  const Vector even = Vector{} + from_bits(pair << 16), odd = Vector{} + from_bits(pair & 0xffff0000u);
  for (int v = 0; v < V; ++v) {
    sums[v] = multiply_add(even, (Vector)(w[v] << 16), sums[v]);
    sums[v] = multiply_add(odd, (Vector)(w[v] & 0xffff0000u), sums[v]);
  }
#endif
}

// Rows in bfloat16, and weights from which load() makes words of two.
template <typename Format, typename T>
struct Paired {
  using Row = at::BFloat16;
  using Stored = T;
  static constexpr int64_t STEP = 2;  // panel [k / 2][columns][2]

  template <int R, int V>
  static void multiply(const Row* const* rows, const T* weights, int64_t steps, Vector (&sums)[R][V]) {
    const int64_t panel = steps * V * LANES * STEP;
    for (int64_t k = 0; k < steps; ++k, weights += V * LANES * STEP) {
      prefetch(weights + panel, V * LANES * STEP * sizeof(T));
      Words w[V];
      for (int v = 0; v < V; ++v) w[v] = Format::load(weights + v * LANES * STEP);
      for (int r = 0; r < R; ++r) {
        uint32_t pair;
        std::memcpy(&pair, rows[r] + k * STEP, sizeof pair);
        multiply_add_pairs<V>(pair, w, sums[r]);
      }
    }
  }

  static void store(at::BFloat16* to, const Vector& sums) {
#if defined(__AVX512BF16__)
    const __m256bh rounded = _mm512_cvtneps_pbh((__m512)sums);
    std::memcpy(to, &rounded, sizeof rounded);
#else
    for (int64_t n = 0; n < LANES; ++n) to[n] = static_cast<at::BFloat16>(sums[n]);
#endif
  }
};

struct BFloat16 : Paired<BFloat16, at::BFloat16> {
  static Words load(const at::BFloat16* weights) {
    Words w;
    std::memcpy(&w, weights, sizeof w);
    return w;
  }
};

// Every int8 is a bfloat16, so a product has the bits of one with these in bfloat16.
struct Int8 : Paired<Int8, int8_t> {
  static Words load(const int8_t* weights) {
#if defined(__AVX512BF16__)
    const auto floats = [](const int8_t* from) {
      return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    };
    const __m512 low = floats(weights), high = floats(weights + LANES);
    return (Words)(__m512i)_mm512_cvtne2ps_pbh(high, low);
#else
    using Halves = int16_t __attribute__((vector_size(2 * LANES)));
    using Integers = int32_t __attribute__((vector_size(4 * LANES)));
    Halves pairs;  // the first of two in the lower byte
    std::memcpy(&pairs, weights, sizeof pairs);
    const Integers both = __builtin_convertvector(pairs, Integers);
    const Vector even = __builtin_convertvector((Integers)((Words)both << 24) >> 24, Vector);
    const Vector odd = __builtin_convertvector(both >> 8, Vector);
    return ((Words)even >> 16) | ((Words)odd & 0xffff0000u);
#endif
  }
};

}  // namespace
