// Products with prepacked weights on a CPU: float32 by float32, bfloat16 by bfloat16 or by int8.
//
// Every output element is one chain of multiply-adds over k = 0, 1, 2, ... in float32: its bits depend on its row and
// on its column of weights, and on nothing else, such as how many rows there are or how many threads compute them.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <deque>
#include <mutex>
#include <vector>

#include "formats.h"

namespace {

struct Weight {
  at::Tensor packed;
  at::Tensor scale, bias;  // float32, padded to whole vectors; undefined where there is none
  int64_t in, out;

  bool is_int8() const { return packed.scalar_type() == at::kChar; }
  at::ScalarType row_type() const { return is_int8() ? at::kBFloat16 : packed.scalar_type(); }
};

constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Applies what a weight has of each column.
template <int R, int V, typename Operation>
void by_column(const at::Tensor& values, int64_t column, Vector (&sums)[R][V], Operation&& apply) {
  if (!values.defined()) return;
  Vector own[V];
  std::memcpy(own, values.const_data_ptr<float>() + column, sizeof own);
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) apply(sums[r][v], own[v]);
}

template <typename F, int R, int V>
void tile(const typename F::Row* const* rows, const Weight& weight, int64_t column, int64_t steps,
          typename F::Row* const* out) {
  Vector sums[R][V] = {};
  const auto* weights = weight.packed.const_data_ptr<typename F::Stored>() + column * steps * F::STEP;
  F::template multiply<R, V>(rows, weights, steps, sums);
  by_column(weight.scale, column, sums, [](Vector& sum, const Vector& scale) { sum *= scale; });
  by_column(weight.bias, column, sums, [](Vector& sum, const Vector& bias) { sum += bias; });
  const int64_t width = std::min<int64_t>(V * LANES, weight.out - column);
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < V; ++v) {
      const int64_t left = width - v * LANES;
      if (left >= LANES) {
        F::store(out[r] + v * LANES, sums[r][v]);
      } else {
        std::array<typename F::Row, LANES> last;
        F::store(last.data(), sums[r][v]);
        std::copy_n(last.data(), left, out[r] + v * LANES);
      }
    }
  }
}

template <typename F, int V, int R = TILE_ROWS>
void tile_of(int64_t n, const typename F::Row* const* rows, const Weight& weight, int64_t column, int64_t steps,
             typename F::Row* const* out) {
  if (n == R) return tile<F, R, V>(rows, weight, column, steps, out);
  if constexpr (R > 1) tile_of<F, V, R - 1>(n, rows, weight, column, steps, out);
}

template <typename F, int V = VECTORS>
void panel(const typename F::Row* x, int64_t num_rows, const Weight& weight, int64_t column, typename F::Row* out,
           int64_t out_stride) {
  if (weight.out - column <= (V - 1) * LANES) {
    if constexpr (V > 1) return panel<F, V - 1>(x, num_rows, weight, column, out, out_stride);
  }
  const int64_t steps = round_up(weight.in, F::STEP) / F::STEP, x_stride = steps * F::STEP;
  for (int64_t done = 0; done < num_rows;) {
    // Tiles as even as can be, so that the last one is not a thin one.
    const int64_t left = num_rows - done, tiles = (left + TILE_ROWS - 1) / TILE_ROWS, n = (left + tiles - 1) / tiles;
    const typename F::Row* rows[TILE_ROWS];
    typename F::Row* to[TILE_ROWS];
    for (int64_t r = 0; r < n; ++r) {
      rows[r] = x + (done + r) * x_stride;
      to[r] = out + (done + r) * out_stride;
    }
    tile_of<F, V>(n, rows, weight, column, steps, to);
    done += n;
  }
}

using Weights = std::vector<const Weight*>;

template <typename F>
void multiply(const at::Tensor& x, const Weights& weights, at::Tensor& out) {
  std::vector<int64_t> first_panel{0}, first_column{0};
  for (const Weight* w : weights) {
    first_panel.push_back(first_panel.back() + (w->out + PANEL - 1) / PANEL);
    first_column.push_back(first_column.back() + w->out);
  }
  const auto* from = x.const_data_ptr<typename F::Row>();
  auto* to = out.mutable_data_ptr<typename F::Row>();
  at::parallel_for(0, first_panel.back(), 1, [&](int64_t begin, int64_t end) {
    size_t i = 0;
    for (int64_t p = begin; p < end; ++p) {
      while (p >= first_panel[i + 1]) ++i;
      const int64_t column = (p - first_panel[i]) * PANEL;
      panel<F>(from, x.size(0), *weights[i], column, to + first_column[i] + column, out.size(1));
    }
  });
}

at::Tensor products(const at::Tensor& input, const Weights& weights) {
  const int64_t in = input.size(-1);
  int64_t total = 0;
  for (const Weight* w : weights) {
    TORCH_CHECK_VALUE(in == w->in, "the input has ", in, " columns, the weight ", w->in);
    TORCH_CHECK_VALUE(
        input.scalar_type() == w->row_type(), "the input is ", input.scalar_type(), ", the weight is for ",
        w->row_type());
    TORCH_CHECK_VALUE(w->is_int8() == weights[0]->is_int8(), "weights in int8 and others in one call");
    total += w->out;
  }
  const bool is_float = input.scalar_type() == at::kFloat;
  at::Tensor x = input.reshape({-1, in});
  if (!is_float && in % 2) x = at::constant_pad_nd(x, {0, 1});
  x = x.contiguous();
  at::Tensor out = at::empty({x.size(0), total}, x.options());
  if (is_float) {
    multiply<Float32>(x, weights, out);
  } else if (weights[0]->is_int8()) {
    multiply<Int8>(x, weights, out);
  } else {
    multiply<BFloat16>(x, weights, out);
  }
  auto sizes = input.sizes().vec();
  sizes.back() = total;
  return out.view(sizes);
}

template <typename F>
at::Tensor pack(const at::Tensor& weight) {
  using T = typename F::Stored;
  constexpr int64_t STEP = F::STEP;
  const int64_t out = weight.size(0), in = weight.size(1), depth = round_up(in, STEP);
  at::Tensor packed = at::empty({round_up(out, LANES) * depth}, weight.options());
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
  return packed;
}

at::Tensor pack_any(const at::Tensor& weight) {
  switch (weight.scalar_type()) {
    case at::kFloat:
      return pack<Float32>(weight);
    case at::kBFloat16:
      return pack<BFloat16>(weight);
    case at::kChar:
      return pack<Int8>(weight);
    default:
      TORCH_CHECK_VALUE(false, "a weight is float32, bfloat16 or int8, not ", weight.scalar_type());
  }
}

at::Tensor padded(const std::optional<at::Tensor>& by_column, int64_t out) {
  if (!by_column) return {};
  TORCH_CHECK_VALUE(by_column->dim() == 1 && by_column->size(0) == out, "scale and bias are [", out, "], not ",
                    by_column->sizes());
  return at::constant_pad_nd(by_column->to(at::kFloat), {0, round_up(out, LANES) - out}).contiguous();
}

Weight pack(const at::Tensor& weight, const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& scale) {
  TORCH_CHECK_VALUE(weight.dim() == 2, "a weight is [out, in], not ", weight.sizes());
  TORCH_CHECK_VALUE((weight.scalar_type() == at::kChar) == scale.has_value(), "int8 has a scale, and nothing else has");
  const int64_t out = weight.size(0), in = weight.size(1);
  return {pack_any(weight.contiguous()), padded(scale, out), padded(bias, out), in, out};
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

int64_t add_weight(int64_t bank, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                   const std::optional<at::Tensor>& scale) {
  auto& weights = bank_of(bank);
  weights.push_back(pack(weight, bias, scale));
  return static_cast<int64_t>(weights.size()) - 1;
}

void choose_bank(int64_t bank) { chosen = &bank_of(bank); }

void free_bank(int64_t bank) { bank_of(bank).clear(); }

int64_t bank_bytes(int64_t bank) {
  int64_t bytes = 0;
  for (const Weight& w : bank_of(bank))
    for (const at::Tensor& part : {w.packed, w.scale, w.bias}) bytes += part.defined() ? part.nbytes() : 0;
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
  m.def("add_weight(int bank, Tensor weight, Tensor? bias, Tensor? scale) -> int", &add_weight);
  m.def("choose_bank(int bank) -> ()", &choose_bank);
  m.def("free_bank(int bank) -> ()", &free_bank);
  m.def("bank_bytes(int bank) -> int", &bank_bytes);
  m.def("packed_linear(Tensor x, int[] numbers, int[] sizes) -> Tensor");
}

TORCH_LIBRARY_IMPL(kadence_linear, CPU, m) { m.impl("packed_linear", &packed_linear); }
