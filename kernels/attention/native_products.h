// The two matrix products of attention, in blocks that stay in registers. A block's size decides which sums run side by
// side, never the order of one: a score is summed over the head's numbers, a weighted value over the keys, one by one.
#pragma once

#include "native_vector.h"

#include <algorithm>
#include <type_traits>

namespace kadence {

constexpr int PANEL = 64;
// Keys that are laid out with their numbers side by side, so that each lane of a vector is another key.

#if defined(KADENCE_AVX512) && defined(__AVX512BF16__)
// Two bfloat16 numbers lie in one of the panel's entries, and one instruction adds both of their products.
template <class T>
constexpr int PAIR = std::is_same_v<T, c10::BFloat16> ? 2 : 1;
#else
template <class T>
constexpr int PAIR = 1;
#endif

// panel [head_dim / PAIR, PANEL] of `keys`, each of head_dim numbers, a multiple of 16.
template <class T>
inline void lay_out_keys(const T* const* keys, int count, int head_dim, float* panel) {
#if defined(KADENCE_AVX512)
  for (int first = 0; first < count; first += 16)
    for (int d = 0; d < head_dim; d += 16 * PAIR<T>) {
      __m512i rows[16];
      const bool half = PAIR<T> == 2 && d + 32 > head_dim;  // head_dim is an odd multiple of 16
      for (int i = 0; i < 16; ++i) {
        const T* from = keys[first + i] + d;
        if constexpr (PAIR<T> == 1)
          rows[i] = (__m512i)widen(from);
        else if (half)
          rows[i] = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
        else
          rows[i] = _mm512_loadu_si512(from);
      }
      transpose(rows);
      for (int i = 0; i < (half ? 8 : 16); ++i)
        _mm512_storeu_si512(panel + (d / PAIR<T> + i) * PANEL + first, rows[i]);
    }
#else
  for (int i = 0; i < count; ++i)
    for (int d = 0; d < head_dim; ++d) panel[d * PANEL + i] = static_cast<float>(keys[i][d]);
#endif
}

// The rows' numbers as `dots` multiplies them: [head_dim / PAIR] entries.
template <class T>
inline void lay_out_query(const T* query, int head_dim, float* to) {
  if constexpr (PAIR<T> == 2)
    std::memcpy(to, query, head_dim * sizeof(T));
  else
    for (int d = 0; d < head_dim; d += WIDTH) store(to + d, widen(query + d));
}

template <class T>
inline Vector take_product(Vector sum, float query, Vector keys) {
#if defined(KADENCE_AVX512) && defined(__AVX512BF16__)
  if constexpr (PAIR<T> == 2) {
    int32_t pair;
    std::memcpy(&pair, &query, sizeof pair);
    return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)keys);
  }
#endif
  return multiply_add(splat(query), keys, sum);
}

// scores [ROWS, COLUMNS * WIDTH] of rows of a query and the panel's first keys.
template <class T, int ROWS, int COLUMNS>
void dots(const float* query, int64_t query_stride, const float* panel, int entries, float* scores, int64_t stride) {
  Vector sums[ROWS][COLUMNS] = {};
  for (int d = 0; d < entries; ++d) {
    Vector keys[COLUMNS];
#pragma GCC unroll 8
    for (int c = 0; c < COLUMNS; ++c) keys[c] = load(panel + d * PANEL + c * WIDTH);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      const float number = query[r * query_stride + d];
#pragma GCC unroll 8
      for (int c = 0; c < COLUMNS; ++c) sums[r][c] = take_product<T>(sums[r][c], number, keys[c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < COLUMNS; ++c) store(scores + r * stride + c * WIDTH, sums[r][c]);
}

// sums [ROWS, COLUMNS * WIDTH] += weights[from .. to) of each row times the values' numbers from d on, key by key.
template <class T, int ROWS, int COLUMNS>
void weigh(const float* weights, int64_t stride, const T* const* values, int from, int to, int d, float* sums,
           int64_t sums_stride) {
  Vector held[ROWS][COLUMNS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < COLUMNS; ++c) held[r][c] = load(sums + r * sums_stride + c * WIDTH);
  for (int key = from; key < to; ++key) {
    Vector numbers[COLUMNS];
#pragma GCC unroll 8
    for (int c = 0; c < COLUMNS; ++c) numbers[c] = widen(values[key] + d + c * WIDTH);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      const Vector weight = splat(weights[r * stride + key]);
#pragma GCC unroll 8
      for (int c = 0; c < COLUMNS; ++c) held[r][c] = multiply_add(weight, numbers[c], held[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < COLUMNS; ++c) store(sums + r * sums_stride + c * WIDTH, held[r][c]);
}

// Calls f with integral constants for rows in 1 .. BLOCK_ROWS and columns in 1 .. BLOCK_VECTORS.
template <int ROWS = BLOCK_ROWS, int COLUMNS = BLOCK_VECTORS, class F>
inline void with_block(int rows, int columns, F&& f) {
  if (rows < ROWS) {
    if constexpr (ROWS > 1) with_block<ROWS - 1, COLUMNS>(rows, columns, f);
  } else if (columns < COLUMNS) {
    if constexpr (COLUMNS > 1) with_block<ROWS, COLUMNS - 1>(rows, columns, f);
  } else {
    f(std::integral_constant<int, ROWS>{}, std::integral_constant<int, COLUMNS>{});
  }
}

// scores [rows, count rounded up to WIDTH], any number of rows, count at most PANEL.
template <class T>
void all_dots(const float* query, int64_t query_stride, int rows, const float* panel, int entries, int count,
              float* scores, int64_t stride) {
  for (int c = 0; c * WIDTH < count; c += BLOCK_VECTORS)
    for (int r = 0; r < rows; r += BLOCK_ROWS)
      with_block(std::min(rows - r, BLOCK_ROWS), std::min((count + WIDTH - 1) / WIDTH - c, BLOCK_VECTORS),
                 [&](auto R, auto C) {
                   dots<T, R(), C()>(query + r * query_stride, query_stride, panel + c * WIDTH, entries,
                                     scores + r * stride + c * WIDTH, stride);
                 });
}

// sums [rows, head_dim] += weights[from .. to) times values; rows at most BLOCK_ROWS.
template <class T>
void all_weighed(const float* weights, int64_t stride, int rows, const T* const* values, int from, int to, int head_dim,
                 float* sums) {
  if (from >= to) return;
  for (int d = 0; d < head_dim; d += BLOCK_VECTORS * WIDTH)
    with_block(rows, std::min((head_dim - d) / WIDTH, BLOCK_VECTORS), [&](auto R, auto C) {
      weigh<T, R(), C()>(weights, stride, values, from, to, d, sums + d, head_dim);
    });
}

}  // namespace kadence
