// Products with prepacked weights, for float32 and bfloat16 on a CPU.
//
// Every output element is one chain of multiply-adds over k = 0, 1, 2, ... in float32: its bits depend on its row and
// on its column of weights, and on nothing else, such as how many rows there are or how many threads compute them.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

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

inline void prefetch(const void* weights, int64_t vectors) {
  for (int64_t v = 0; v < vectors; ++v)
    __builtin_prefetch(static_cast<const char*>(weights) + v * sizeof(Vector), 0, 2);
}

// How a dtype lies in a panel, and how a tile is multiplied: `sums` of R rows over `steps` steps of k.
template <typename T>
struct Format;

template <>
struct Format<float> {
  static constexpr int64_t STEP = 1;  // panel [k][columns]

  template <int R, int V>
  static void multiply(const float* const* rows, const float* weights, int64_t steps, Vector (&sums)[R][V]) {
    const int64_t panel = steps * V * LANES;
    for (int64_t k = 0; k < steps; ++k, weights += V * LANES) {
      prefetch(weights + panel, V);
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

template <>
struct Format<at::BFloat16> {
  static constexpr int64_t STEP = 2;  // panel [k / 2][columns][2]

  template <int R, int V>
  static void multiply(
      const at::BFloat16* const* rows, const at::BFloat16* weights, int64_t steps, Vector (&sums)[R][V]) {
    const int64_t panel = steps * V * LANES * STEP;
    for (int64_t k = 0; k < steps; ++k, weights += V * LANES * STEP) {
      prefetch(weights + panel, V);
      Words w[V];
      for (int v = 0; v < V; ++v) std::memcpy(&w[v], weights + v * LANES * STEP, sizeof w[v]);
      for (int r = 0; r < R; ++r) {
        uint32_t pair;
        std::memcpy(&pair, rows[r] + k * STEP, sizeof pair);
#if defined(__AVX512BF16__)
        const auto x = (__m512bh)_mm512_set1_epi32(static_cast<int>(pair));
        for (int v = 0; v < V; ++v)
          sums[r][v] = (Vector)_mm512_dpbf16_ps((__m512)sums[r][v], x, (__m512bh)(__m512i)w[v]);
#else
        const Vector even = Vector{} + from_bits(pair << 16), odd = Vector{} + from_bits(pair & 0xffff0000u);
        for (int v = 0; v < V; ++v) {
          sums[r][v] = multiply_add(even, (Vector)(w[v] << 16), sums[r][v]);
          sums[r][v] = multiply_add(odd, (Vector)(w[v] & 0xffff0000u), sums[r][v]);
        }
#endif
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

struct Weight {
  at::Tensor packed, bias;  // bias: float32, padded to whole vectors; undefined where there is none
  int64_t in, out;
};

constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

template <typename T, int R, int V>
void tile(const T* const* rows, const Weight& weight, int64_t column, int64_t steps, T* const* out) {
  Vector sums[R][V] = {};
  const T* weights = weight.packed.const_data_ptr<T>() + column * steps * Format<T>::STEP;
  Format<T>::template multiply<R, V>(rows, weights, steps, sums);
  if (weight.bias.defined()) {
    Vector bias[V];
    std::memcpy(bias, weight.bias.const_data_ptr<float>() + column, sizeof bias);
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) sums[r][v] += bias[v];
  }
  const int64_t width = std::min<int64_t>(V * LANES, weight.out - column);
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      const int64_t left = width - v * LANES;
      if (left >= LANES) {
        Format<T>::store(out[r] + v * LANES, sums[r][v]);
      } else {
        std::array<T, LANES> last;
        Format<T>::store(last.data(), sums[r][v]);
        std::copy_n(last.data(), left, out[r] + v * LANES);
      }
    }
  }
}

template <typename T, int V, int R = TILE_ROWS>
void tile_of(int64_t n, const T* const* rows, const Weight& weight, int64_t column, int64_t steps, T* const* out) {
  if (n == R) return tile<T, R, V>(rows, weight, column, steps, out);
  if constexpr (R > 1) tile_of<T, V, R - 1>(n, rows, weight, column, steps, out);
}

template <typename T, int V = VECTORS>
void panel(const T* x, int64_t num_rows, const Weight& weight, int64_t column, T* out, int64_t out_stride) {
  if (weight.out - column <= (V - 1) * LANES) {
    if constexpr (V > 1) return panel<T, V - 1>(x, num_rows, weight, column, out, out_stride);
  }
  const int64_t steps = round_up(weight.in, Format<T>::STEP) / Format<T>::STEP, x_stride = steps * Format<T>::STEP;
  for (int64_t done = 0; done < num_rows;) {
    // Tiles as even as can be, so that the last one is not a thin one.
    const int64_t left = num_rows - done, tiles = (left + TILE_ROWS - 1) / TILE_ROWS, n = (left + tiles - 1) / tiles;
    const T* rows[TILE_ROWS];
    T* to[TILE_ROWS];
    for (int64_t r = 0; r < n; ++r) {
      rows[r] = x + (done + r) * x_stride;
      to[r] = out + (done + r) * out_stride;
    }
    tile_of<T, V>(n, rows, weight, column, steps, to);
    done += n;
  }
}

using Weights = std::vector<const Weight*>;

template <typename T>
void multiply(const at::Tensor& x, const Weights& weights, at::Tensor& out) {
  std::vector<int64_t> first_panel{0}, first_column{0};
  for (const Weight* w : weights) {
    first_panel.push_back(first_panel.back() + (w->out + PANEL - 1) / PANEL);
    first_column.push_back(first_column.back() + w->out);
  }
  const T* from = x.const_data_ptr<T>();
  T* to = out.mutable_data_ptr<T>();
  at::parallel_for(0, first_panel.back(), 1, [&](int64_t begin, int64_t end) {
    size_t i = 0;
    for (int64_t p = begin; p < end; ++p) {
      while (p >= first_panel[i + 1]) ++i;
      const int64_t column = (p - first_panel[i]) * PANEL;
      panel<T>(from, x.size(0), *weights[i], column, to + first_column[i] + column, out.size(1));
    }
  });
}

at::Tensor products(const at::Tensor& input, const Weights& weights) {
  const int64_t in = input.size(-1);
  int64_t total = 0;
  for (const Weight* w : weights) {
    TORCH_CHECK_VALUE(in == w->in, "the input has ", in, " columns, the weight ", w->in);
    TORCH_CHECK_VALUE(
        input.scalar_type() == w->packed.scalar_type(), "the input is ", input.scalar_type(), ", the weight ",
        w->packed.scalar_type());
    total += w->out;
  }
  const bool is_float = input.scalar_type() == at::kFloat;
  at::Tensor x = input.reshape({-1, in});
  if (!is_float && in % 2) x = at::constant_pad_nd(x, {0, 1});
  x = x.contiguous();
  at::Tensor out = at::empty({x.size(0), total}, x.options());
  if (is_float) {
    multiply<float>(x, weights, out);
  } else {
    multiply<at::BFloat16>(x, weights, out);
  }
  auto sizes = input.sizes().vec();
  sizes.back() = total;
  return out.view(sizes);
}

template <typename T>
void pack(const at::Tensor& weight, at::Tensor& packed) {
  constexpr int64_t STEP = Format<T>::STEP;
  const int64_t out = weight.size(0), in = weight.size(1), depth = round_up(in, STEP);
  const T* from = weight.const_data_ptr<T>();
  T* to = packed.mutable_data_ptr<T>();
  at::parallel_for(0, (out + PANEL - 1) / PANEL, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const int64_t column = p * PANEL, width = round_up(std::min(PANEL, out - column), LANES);
      T* panel = to + column * depth;
      for (int64_t n = 0; n < width; ++n)
        for (int64_t k = 0; k < depth; ++k)
          panel[(k / STEP * width + n) * STEP + k % STEP] =
              column + n < out && k < in ? from[(column + n) * in + k] : T(0);
    }
  });
}

Weight pack(const at::Tensor& given, const std::optional<at::Tensor>& bias) {
  TORCH_CHECK_VALUE(given.dim() == 2, "a weight is [out, in], not ", given.sizes());
  const auto type = given.scalar_type();
  TORCH_CHECK_VALUE(type == at::kFloat || type == at::kBFloat16, "a weight is float32 or bfloat16, not ", type);
  const at::Tensor weight = given.contiguous();
  const int64_t out = weight.size(0), in = weight.size(1), columns = round_up(out, LANES);
  Weight result{at::empty({columns * round_up(in, type == at::kFloat ? 1 : 2)}, weight.options()), {}, in, out};
  if (type == at::kFloat) {
    pack<float>(weight, result.packed);
  } else {
    pack<at::BFloat16>(weight, result.packed);
  }
  if (bias) result.bias = at::constant_pad_nd(bias->to(at::kFloat), {0, columns - out}).contiguous();
  return result;
}

// Banks of packed weights. A graph names a weight by its number; which bank that is in, the thread says that runs it.
std::mutex banks_lock;
std::deque<std::deque<Weight>> banks;  // a deque: growth moves none of them
thread_local std::deque<Weight>* chosen = nullptr;

std::deque<Weight>& bank_of(int64_t bank) {
  const std::lock_guard guard(banks_lock);
  return banks.at(bank);
}

int64_t new_bank() {
  const std::lock_guard guard(banks_lock);
  banks.emplace_back();
  return static_cast<int64_t>(banks.size()) - 1;
}

int64_t add_weight(int64_t bank, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  auto& weights = bank_of(bank);
  weights.push_back(pack(weight, bias));
  return static_cast<int64_t>(weights.size()) - 1;
}

void choose_bank(int64_t bank) { chosen = &bank_of(bank); }

void free_bank(int64_t bank) { bank_of(bank).clear(); }

int64_t bank_bytes(int64_t bank) {
  int64_t bytes = 0;
  for (const Weight& w : bank_of(bank)) bytes += w.packed.nbytes() + (w.bias.defined() ? w.bias.nbytes() : 0);
  return bytes;
}

at::Tensor packed_linear(const at::Tensor& x, at::IntArrayRef numbers, at::IntArrayRef /* sizes */) {
  TORCH_CHECK(chosen != nullptr, "no bank of weights was chosen in this thread");
  Weights weights;
  for (const int64_t number : numbers) weights.push_back(&chosen->at(number));
  return products(x, weights);
}

}  // namespace

TORCH_LIBRARY(kadence_linear, m) {
  m.def("new_bank() -> int", &new_bank);
  m.def("add_weight(int bank, Tensor weight, Tensor? bias) -> int", &add_weight);
  m.def("choose_bank(int bank) -> ()", &choose_bank);
  m.def("free_bank(int bank) -> ()", &free_bank);
  m.def("bank_bytes(int bank) -> int", &bank_bytes);
  m.def("packed_linear(Tensor x, int[] numbers, int[] sizes) -> Tensor");
}

TORCH_LIBRARY_IMPL(kadence_linear, CPU, m) { m.impl("packed_linear", &packed_linear); }
