// Attention of a few rows of one sequence over one split of its keys, and the adding up of splits.
//
// Everything that a row's bits depend on follows from positions in its own text: splits begin at multiples of SPLIT, a
// lane of the sum of weights takes every WIDTH-th position, values are added position by position, splits in their order.
// A row of a tree reads scattered slots, yet the order of its sums is that of the same path laid out as a chain.
#pragma once

#include "native_products.h"

#include <cmath>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

namespace kadence {

constexpr int SPLIT = 256;
// Positions; the scores of one split of 48 rows lie in the second-level cache, those of a few rows in the first.
constexpr int PACKED_ROWS = 48;
// Rows x heads of a group that share one pass over the keys.

constexpr float NOTHING = -std::numeric_limits<float>::infinity();

template <class T>
struct Cache {
  const T* numbers;
  int64_t block_stride, slot_stride, head_stride;
};

// What one call is asked. Pointers and meaning as in `kernels.attention.tree_attention`; window 0 and softcap 0 are off.
template <class T>
struct Call {
  const T* query;
  int64_t query_row_stride, query_head_stride;
  Cache<T> keys, values;
  const int32_t *block_tables, *context_lens, *cu_rows, *ancestors, *depths;
  int64_t table_stride, words;
  int batch, q_heads, kv_heads, head_dim, block_size, window;
  float scale, softcap;
  std::vector<char> is_chain;  // of each sequence: its rows see all rows before them, whether or not a bitmask says so
  T* out;

  int group() const { return q_heads / kv_heads; }
  int entries() const { return head_dim / PAIR<T>; }

  bool sees(int row, int other) const {
    return static_cast<uint32_t>(ancestors[row * words + other / 32]) >> (other % 32) & 1;
  }

  int num_seen(int row, int rows) const {  // of the step's rows
    int found = 0;
    for (int j = 0; j < rows; ++j) found += sees(row, j);
    return found;
  }

  // Positions of committed tokens, and of rows of a chain, that row i of sequence b sees: [first, end).
  std::pair<int, int> seen_in_line(int b, int i) const {
    const int context = context_lens[b], first_row = cu_rows[b];
    if (is_chain[b]) return {window ? std::max(0, context + i - window + 1) : 0, context + i + 1};
    if (!window) return {0, context};
    const int depth = depths ? depths[first_row + i] : num_seen(first_row + i, cu_rows[b + 1] - first_row) - 1;
    return {std::clamp(context + depth - window + 1, 0, context), context};
  }

  const T* at(const Cache<T>& cache, int b, int slot, int kv_head) const {
    const int64_t block = block_tables[b * table_stride + slot / block_size];
    return cache.numbers + block * cache.block_stride + slot % block_size * cache.slot_stride +
           kv_head * cache.head_stride;
  }
};

// Rows of one sequence and the heads of one group; packed row r * group + m is head m of the group of row r.
struct Rows {
  int sequence, first, count, kv_head, first_split, splits;
  int64_t partial;  // where its partial results begin, in packed rows
};

// Of each packed row: its largest score in base-2 units, the sum of 2^(score - peak), and the values so weighted.
struct Partial {
  float *peaks, *masses, *sums;
};

template <class T>
struct Scratch {
  std::vector<float> query, panel, scores, peaks, masses, sums;
  std::vector<const T*> keys, values, path_values;
  std::vector<int> from, to, path_from, path_to, path;
  std::vector<T> zeros;
};

template <class T>
inline void fetch(const T* numbers, int count) {
  constexpr int LINE = 64 / sizeof(T);
  for (int i = 0; i < count; i += LINE) __builtin_prefetch(numbers + i, 0, 2);
}

template <class V>
auto* at_least(V& vector, size_t size) {
  if (vector.size() < size) vector.resize(size);
  return vector.data();
}

// Scores [from, to) to weights in place -> (peak, mass). Lanes outside up to a multiple of WIDTH become 0.
inline std::pair<float, float> soften(float* scores, int from, int to, float scale, float softcap) {
  constexpr float LOG2_E = 1.44269504f;
  const int start = from / WIDTH * WIDTH;
  Integers lane;
  for (int i = 0; i < WIDTH; ++i) lane[i] = start + i;
  Vector peaks = splat(NOTHING);
  const float factor = softcap > 0 ? scale * (2 * LOG2_E / softcap) : scale * LOG2_E;
  for (int i = start; i < to; i += WIDTH, lane += WIDTH) {
    Vector score = load(scores + i) * factor;
    if (softcap > 0) {  // tanh; far out it is 1 and -1, where the exponential would overflow or vanishes
      const Vector growth = exp2(select(score > splat(64.0f), splat(64.0f), score));
      score = (1.0f - 2.0f / (growth + 1.0f)) * (softcap * LOG2_E);
    }
    score = select((lane >= from) & (lane < to), score, splat(NOTHING));
    store(scores + i, score);
    peaks = larger(peaks, score);
  }
  const float peak = largest_lane(peaks);
  const Vector shift = splat(peak == NOTHING ? 0.0f : peak);
  Vector masses = {};
  for (int i = start; i < to; i += WIDTH) {
    const Vector weight = exp2(load(scores + i) - shift);
    store(scores + i, weight);
    masses += weight;
  }
  return {peak, sum_of_lanes(masses)};
}

// The scores of packed rows `first_packed` and on, against the keys [from, to), at the same columns.
template <class T>
void score(const Call<T>& call, Scratch<T>& scratch, const T* const* keys, int from, int to, int packed, float* scores,
           int64_t stride, const int* row_ends) {
  const int group = call.group(), entries = call.entries();
  float* panel = at_least(scratch.panel, static_cast<size_t>(entries) * PANEL);
  for (int p = from / PANEL * PANEL; p < to; p += PANEL) {
    const int count = std::min(PANEL, (to - p + 15) / 16 * 16);
    lay_out_keys<T>(keys + p, count, call.head_dim, panel);
    int first = 0;  // rows that end before this panel need none of it
    while (row_ends && first < packed / group && row_ends[first] <= p) ++first;
    all_dots<T>(scratch.query.data() + first * group * entries, entries, packed - first * group, panel, entries, count,
                scores + first * group * stride + p, stride);
  }
}

// One split of some rows -> `out`; a packed row that sees nothing there has the peak -infinity and no sums.
template <class T>
void attend(const Call<T>& call, const Rows& rows, int split, Scratch<T>& scratch, Partial out) {
  const int b = rows.sequence, base = split * SPLIT, group = call.group(), packed = rows.count * group;
  const int head_dim = call.head_dim, entries = call.entries(), context = call.context_lens[b];
  const int first_row = call.cu_rows[b], num_rows = call.cu_rows[b + 1] - first_row;
  const bool has_path = !call.is_chain[b] && base + SPLIT > context;  // some row's path may come into this split
  const int path_slots = has_path ? (num_rows + PANEL - 1) / PANEL * PANEL : 0;
  const int64_t stride = SPLIT + path_slots;

  int *from = at_least(scratch.from, rows.count), *to = at_least(scratch.to, rows.count);
  int low = SPLIT, high = 0;
  for (int r = 0; r < rows.count; ++r) {
    const auto [first, end] = call.seen_in_line(b, rows.first + r);
    from[r] = std::clamp(first - base, 0, SPLIT), to[r] = std::clamp(end - base, 0, SPLIT);
    if (from[r] >= to[r]) from[r] = to[r] = std::min(from[r], to[r]);
    else low = std::min(low, from[r]), high = std::max(high, to[r]);
  }
  const T* zeros = at_least(scratch.zeros, head_dim);
  const T** keys = at_least(scratch.keys, stride);
  const T** values = at_least(scratch.values, stride);
  for (int i = low / PANEL * PANEL; i < low; ++i) keys[i] = zeros;
  for (int i = low; i < high; ++i) {
    keys[i] = call.at(call.keys, b, base + i, rows.kv_head), values[i] = call.at(call.values, b, base + i, rows.kv_head);
    fetch(keys[i], head_dim);  // blocks lie anywhere: the CPU's own guess of what comes next is of little use
  }
  for (int i = std::max(high, 0); i < (high + 15) / 16 * 16; ++i) keys[i] = zeros;
  for (int j = 0; j < path_slots; ++j) {
    keys[SPLIT + j] = j < num_rows ? call.at(call.keys, b, context + j, rows.kv_head) : zeros;
    values[SPLIT + j] = j < num_rows ? call.at(call.values, b, context + j, rows.kv_head) : zeros;
  }

  float* query = at_least(scratch.query, static_cast<size_t>(packed) * entries);
  for (int p = 0; p < packed; ++p)
    lay_out_query<T>(call.query + (first_row + rows.first + p / group) * call.query_row_stride +
                         (rows.kv_head * group + p % group) * call.query_head_stride,
                     head_dim, query + p * entries);
  float* scores = at_least(scratch.scores, packed * stride);
  for (int i = low; i < high; ++i) fetch(values[i], head_dim);
  if (low < high) score(call, scratch, keys, low, high, packed, scores, stride, call.is_chain[b] ? to : nullptr);
  if (has_path) score<T>(call, scratch, keys + SPLIT, 0, num_rows, packed, scores + SPLIT, stride, nullptr);

  // Weights, in the order of positions: a path's scores move from its slots to its positions.
  int *path_from = at_least(scratch.path_from, rows.count), *path_to = at_least(scratch.path_to, rows.count);
  int* path = at_least(scratch.path, SPLIT);
  const T** path_values = at_least(scratch.path_values, has_path ? static_cast<size_t>(rows.count) * SPLIT : 0);
  for (int r = 0; r < rows.count; ++r) {
    path_from[r] = path_to[r] = to[r];
    if (has_path) {
      const int row = first_row + rows.first + r;
      const int* depths = call.depths;
      const int depth = call.window ? (depths ? depths[row] : call.num_seen(row, num_rows) - 1) : 0;
      int position = context - base;
      bool begun = false;
      for (int j = 0; j < num_rows; ++j) {
        if (!call.sees(row, j)) continue;
        if (!begun && call.window) {
          const int other = first_row + j;
          begun = depth - (depths ? depths[other] : call.num_seen(other, num_rows) - 1) < call.window;
        } else {
          begun = true;
        }
        if (begun && position >= 0 && position < SPLIT) {
          if (path_to[r] <= path_from[r]) path_from[r] = position;
          path[position] = SPLIT + j, path_values[r * SPLIT + position] = values[SPLIT + j];
          path_to[r] = position + 1;
        }
        ++position;
      }
    }
    const bool on_path = path_from[r] < path_to[r];
    const int start = from[r] < to[r] ? from[r] : path_from[r], end = on_path ? path_to[r] : to[r];
    for (int p = r * group; p < (r + 1) * group; ++p) {
      float* own = scores + p * stride;
      for (int i = path_from[r]; i < path_to[r]; ++i) own[i] = own[path[i]];
      std::tie(out.peaks[p], out.masses[p]) =
          start < end ? soften(own, start, end, call.scale, call.softcap) : std::pair(NOTHING, 0.0f);
    }
  }

  std::fill_n(out.sums, static_cast<size_t>(packed) * head_dim, 0.0f);
  const int blocks = (packed + BLOCK_ROWS - 1) / BLOCK_ROWS, size = (packed + blocks - 1) / blocks;
  for (int p = 0; p < packed; p += size) {
    const int end = std::min(packed, p + size), first = p / group, last = (end - 1) / group;
    // Every row's own positions and no other: a weight of 0 would not take a NaN out of the sum.
    int common_from = from[first], common_to = to[first];
    for (int r = first + 1; r <= last; ++r)
      common_from = std::max(common_from, from[r]), common_to = std::min(common_to, to[r]);
    const bool common = common_from < common_to;
    const auto weighed = [&](int start, int stop, const T* const* at, int i, int j) {
      all_weighed<T>(scores + start * stride, stride, stop - start, at, i, j, head_dim, out.sums + start * head_dim);
    };
    const auto each_row = [&](auto&& f) {
      for (int r = first; r <= last; ++r) f(r, std::max(p, r * group), std::min(end, (r + 1) * group));
    };
    each_row([&](int r, int start, int stop) { weighed(start, stop, values, from[r], common ? common_from : to[r]); });
    if (common) weighed(p, end, values, common_from, common_to);
    each_row([&](int r, int start, int stop) {
      if (common) weighed(start, stop, values, common_to, to[r]);
      if (path_from[r] < path_to[r]) weighed(start, stop, path_values + r * SPLIT, path_from[r], path_to[r]);
    });
  }
}

// Adds a later split of a packed row to what the earlier ones gave.
inline void add_split(float& peak, float& mass, float* sums, float its_peak, float its_mass, const float* its_sums,
                      int head_dim) {
  if (its_peak == NOTHING) return;
  const float shift = peak < its_peak ? its_peak : peak;
  const float fade = peak == NOTHING ? 0.0f : exp2(peak - shift), its_fade = exp2(its_peak - shift);
  mass = mass * fade + its_mass * its_fade;
  for (int d = 0; d < head_dim; d += WIDTH)
    store(sums + d, multiply_add(load(its_sums + d), splat(its_fade), load(sums + d) * fade));
  peak = shift;
}

inline void add_splits(const Partial& sum, const Partial& split, int packed, int head_dim) {
  for (int p = 0; p < packed; ++p)
    add_split(sum.peaks[p], sum.masses[p], sum.sums + p * head_dim, split.peaks[p], split.masses[p],
              split.sums + p * head_dim, head_dim);
}

template <class T>
void write_out(const Call<T>& call, const Rows& rows, const Partial& sum) {
  const int group = call.group(), head_dim = call.head_dim;
  for (int p = 0; p < rows.count * group; ++p) {
    const int64_t row = call.cu_rows[rows.sequence] + rows.first + p / group;
    T* to = call.out + (row * call.q_heads + rows.kv_head * group + p % group) * head_dim;
    const float share = 1.0f / sum.masses[p];
    for (int d = 0; d < head_dim; ++d) to[d] = static_cast<T>(sum.sums[p * head_dim + d] * share);
  }
}

}  // namespace kadence
