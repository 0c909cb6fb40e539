// The operations kadence_attention::tree_attention and write_kv on a CPU: checks, threads, and their registration.

#include "native_attention.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <atomic>
#include <memory>
#include <optional>

namespace kadence {
namespace {

using at::Tensor;
using c10::irange;

constexpr int64_t SERIAL_WORK = 300'000;
// Multiplications below which waking a second thread takes longer than the work.
constexpr int GROUPS_PER_THREAD = 4;

void check_vector(const Tensor& tensor, int64_t dims, const char* name) {
  TORCH_CHECK_VALUE(tensor.device().is_cpu() && tensor.scalar_type() == at::kInt && tensor.dim() == dims, name,
                    " must be int32 on the CPU with ", dims, " dimension(s)");
  TORCH_CHECK_VALUE(tensor.size(dims - 1) <= 1 || tensor.stride(dims - 1) == 1, name, " is strided");
}

// What a call may not be asked. The message is for callers of the operation; `kernels.attention` says more.
void check(const Tensor& rows, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_tables,
           const Tensor& context_lens, const Tensor& cu_rows, std::optional<int64_t> max_rows,
           std::optional<int64_t> max_context) {
  const auto type = rows.scalar_type();
  TORCH_CHECK_VALUE(rows.dim() == 3 && rows.device().is_cpu(), "rows must be [num_rows, heads, head_dim] on the CPU");
  TORCH_CHECK_VALUE(type == at::kFloat || type == at::kBFloat16 || type == at::kHalf, "rows are ", type);
  for (const Tensor* cache : {&k_cache, &v_cache})
    TORCH_CHECK_VALUE(cache->dim() == 4 && cache->scalar_type() == type && cache->device().is_cpu() &&
                          cache->stride(3) == 1 && cache->sizes() == k_cache.sizes(),
                      "the caches must be [num_blocks, block_size, kv_heads, head_dim] of the rows' type");
  const auto block_size = k_cache.size(1), head_dim = k_cache.size(3), batch = context_lens.numel();
  TORCH_CHECK_VALUE(block_size == 16 || block_size == 32 || block_size == 64, "block_size is ", block_size);
  TORCH_CHECK_VALUE(rows.size(2) == head_dim && head_dim % 16 == 0 && head_dim > 0, "head_dim does not fit");
  check_vector(block_tables, 2, "block_tables");
  check_vector(context_lens, 1, "context_lens");
  check_vector(cu_rows, 1, "cu_rows");
  TORCH_CHECK_VALUE(cu_rows.numel() == batch + 1 && block_tables.size(0) == batch, "the tables' lengths do not agree");
  const int32_t *bounds = cu_rows.const_data_ptr<int32_t>(), *contexts = context_lens.const_data_ptr<int32_t>();
  TORCH_CHECK_VALUE(bounds[0] == 0 && bounds[batch] == rows.size(0), "cu_rows does not end at the number of rows");
  for (const auto b : irange(batch)) {
    const int64_t count = static_cast<int64_t>(bounds[b + 1]) - bounds[b];
    TORCH_CHECK_VALUE(count >= 0 && count <= max_rows.value_or(count), "cu_rows does not rise, or passes max_rows");
    TORCH_CHECK_VALUE(contexts[b] >= 0 && contexts[b] <= max_context.value_or(contexts[b]), "context_lens[", b, "] is ",
                      contexts[b]);
    TORCH_CHECK_VALUE(contexts[b] + count <= block_tables.size(1) * block_size, "block_tables is too short");
  }
}

// Every logical slot in [first, end) of a sequence must have a block.
void check_blocks(const Tensor& block_tables, const Tensor& cache, int64_t b, int64_t first, int64_t end) {
  const int32_t* table = block_tables.const_data_ptr<int32_t>() + b * block_tables.stride(0);
  const int64_t size = cache.size(1);
  for (int64_t j = first / size; j * size < end; ++j) {
    TORCH_CHECK_VALUE(table[j] >= 0, "block_tables has no block for position ", std::max(first, j * size),
                      " of sequence ", b, ", which is in use");
    TORCH_CHECK_VALUE(table[j] < cache.size(0), "block_tables names block ", table[j]);
  }
}

// f(i) for i in [0, count) on the threads of PyTorch, each taking the next when it is done.
template <class F>
void take_turns(int64_t count, bool alone, const F& f) {
  const int64_t threads = alone || at::in_parallel_region() ? 1 : std::min<int64_t>(count, at::get_num_threads());
  if (threads <= 1) {
    for (const auto i : irange(count)) f(i);
    return;
  }
  std::atomic<int64_t> next{0};
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) f(i);
  });
}

template <class T>
Cache<T> pointers_to(const Tensor& cache) {
  return {cache.const_data_ptr<T>(), cache.stride(0), cache.stride(1), cache.stride(2)};
}

template <class T>
bool is_chain(const Call<T>& call, int b) {
  if (!call.ancestors) return true;
  const int first = call.cu_rows[b], rows = call.cu_rows[b + 1] - first;
  for (const auto i : irange(rows)) {
    if (call.window && call.depths && call.depths[first + i] != i) return false;
    for (const auto j : irange(rows))
      if (call.sees(first + i, j) != (j <= i)) return false;
  }
  return true;
}

// The work in groups of rows, in the order of the batch; checks their blocks.
template <class T>
std::vector<Rows> groups_of(const Call<T>& call, const Tensor& block_tables, const Tensor& k_cache, int64_t& work) {
  std::vector<Rows> groups;
  int64_t partial = 0;
  for (const auto b : irange(call.batch)) {
    const int rows = call.cu_rows[b + 1] - call.cu_rows[b], context = call.context_lens[b];
    const int step = std::max(1, PACKED_ROWS / call.group());
    int lowest = context + rows;
    for (int first = 0; first < rows; first += step) {
      const int count = std::min(step, rows - first);
      int low = context + rows, end = context;
      for (const auto r : irange(first, first + count)) {
        low = std::min(low, call.seen_in_line(b, r).first);
        end = std::max(end, context + (call.is_chain[b] ? r + 1 : call.num_seen(call.cu_rows[b] + r, rows)));
      }
      lowest = std::min(lowest, low);
      const int first_split = low / SPLIT, splits = (end - 1) / SPLIT - first_split + 1;
      for (const auto h : irange(call.kv_heads)) {
        groups.push_back({b, first, count, h, first_split, splits, partial});
        partial += static_cast<int64_t>(splits) * count * call.group();
      }
      work += static_cast<int64_t>(end - low) * (count * call.group() + 6) * call.head_dim * call.kv_heads;
    }
    if (rows) check_blocks(block_tables, k_cache, b, lowest, context + rows);
  }
  return groups;
}

template <class T>
void attend_all(const Call<T>& call, const std::vector<Rows>& groups, bool alone) {
  static thread_local Scratch<T> scratch;
  const int head_dim = call.head_dim, group = call.group();
  const auto partial_in = [&](std::vector<float>& peaks, std::vector<float>& masses, std::vector<float>& sums,
                              size_t from, size_t packed) {
    return Partial{at_least(peaks, from + packed) + from, at_least(masses, from + packed) + from,
                   at_least(sums, (from + packed) * head_dim) + from * head_dim};
  };
  int64_t units = 0;
  for (const Rows& rows : groups) units += rows.splits;
  const int64_t count = groups.size();
  const bool whole = alone || units == count || count >= GROUPS_PER_THREAD * at::get_num_threads();
  if (whole) {  // one thread goes over all splits of a group
    take_turns(count, alone, [&](int64_t i) {
      const Rows& rows = groups[i];
      const size_t packed = rows.count * group;
      Scratch<T>& own = scratch;
      partial_in(own.peaks, own.masses, own.sums, 0, 2 * packed);
      const Partial sum = partial_in(own.peaks, own.masses, own.sums, 0, packed);
      const Partial split = partial_in(own.peaks, own.masses, own.sums, packed, packed);
      attend(call, rows, rows.first_split, own, sum);
      for (const auto s : irange(1, rows.splits)) {
        attend(call, rows, rows.first_split + s, own, split);
        add_splits(sum, split, packed, head_dim);
      }
      write_out(call, rows, sum);
    });
    return;
  }
  // Too few groups to keep the threads busy: a unit is one split, and whoever ends the last of a group adds them up.
  std::vector<std::pair<int, int>> unit;
  for (const auto i : irange(count))
    for (const auto s : irange(groups[i].splits)) unit.emplace_back(i, s);
  const Rows& last = groups.back();
  const size_t total = last.partial + static_cast<size_t>(last.splits) * last.count * group;
  const std::unique_ptr<float[]> numbers(new float[total * (head_dim + 2)]);
  const std::unique_ptr<std::atomic<int>[]> left(new std::atomic<int>[count]);
  for (const auto i : irange(count)) left[i].store(groups[i].splits, std::memory_order_relaxed);
  const auto partial_of = [&](const Rows& rows, int s) {
    const size_t at = rows.partial + static_cast<size_t>(s) * rows.count * group;
    return Partial{&numbers[at], &numbers[total + at], &numbers[2 * total + at * head_dim]};
  };
  take_turns(units, alone, [&](int64_t u) {
    const auto [i, s] = unit[u];
    const Rows& rows = groups[i];
    attend(call, rows, rows.first_split + s, scratch, partial_of(rows, s));
    if (left[i].fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    const Partial sum = partial_of(rows, 0);
    for (const auto t : irange(1, rows.splits)) add_splits(sum, partial_of(rows, t), rows.count * group, head_dim);
    write_out(call, rows, sum);
  });
}

template <class T>
void attend_typed(const Tensor& query, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_tables,
                  const Tensor& context_lens, const Tensor& cu_rows, const std::optional<Tensor>& ancestors,
                  const std::optional<Tensor>& depths, double scale, int64_t window, double softcap, Tensor& out) {
  Call<T> call;
  call.query = query.const_data_ptr<T>();
  call.query_row_stride = query.stride(0), call.query_head_stride = query.stride(1);
  call.keys = pointers_to<T>(k_cache), call.values = pointers_to<T>(v_cache);
  call.block_tables = block_tables.const_data_ptr<int32_t>(), call.table_stride = block_tables.stride(0);
  call.context_lens = context_lens.const_data_ptr<int32_t>(), call.cu_rows = cu_rows.const_data_ptr<int32_t>();
  call.ancestors = ancestors ? ancestors->const_data_ptr<int32_t>() : nullptr;
  call.words = ancestors ? ancestors->size(1) : 0;
  call.depths = depths ? depths->const_data_ptr<int32_t>() : nullptr;
  call.batch = context_lens.numel(), call.q_heads = query.size(1), call.kv_heads = k_cache.size(2);
  call.head_dim = query.size(2), call.block_size = k_cache.size(1);
  call.window = static_cast<int>(std::min<int64_t>(window, std::numeric_limits<int32_t>::max() / 2));
  call.scale = scale, call.softcap = softcap;
  call.out = out.data_ptr<T>();
  for (const auto b : irange(call.batch)) call.is_chain.push_back(is_chain(call, b));
  int64_t work = 0;
  const auto groups = groups_of(call, block_tables, k_cache, work);
  if (!groups.empty()) attend_all(call, groups, work < SERIAL_WORK);
}

Tensor tree_attention(const Tensor& query, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_tables,
                      const Tensor& context_lens, const Tensor& cu_rows, const std::optional<Tensor>& ancestors,
                      const std::optional<Tensor>& depths, double scale, std::optional<int64_t> window,
                      std::optional<double> softcap, std::optional<int64_t> max_rows,
                      std::optional<int64_t> max_context) {
  check(query, k_cache, v_cache, block_tables, context_lens, cu_rows, max_rows, max_context);
  TORCH_CHECK_VALUE(k_cache.size(2) > 0 && query.size(1) % k_cache.size(2) == 0, "query has ", query.size(1), " heads");
  TORCH_CHECK_VALUE(window.value_or(1) >= 1 && !(softcap && !(*softcap > 0)), "sliding_window or softcap is too low");
  TORCH_CHECK_VALUE(!depths || ancestors, "depths is given without ancestors");
  const int32_t* bounds = cu_rows.const_data_ptr<int32_t>();
  if (ancestors) {
    check_vector(*ancestors, 2, "ancestors");
    TORCH_CHECK_VALUE(ancestors->is_contiguous() && ancestors->size(0) == query.size(0), "ancestors does not fit");
    const int32_t* bits = ancestors->const_data_ptr<int32_t>();
    for (const auto b : irange(context_lens.numel())) {
      const int64_t rows = bounds[b + 1] - bounds[b], words = ancestors->size(1);
      TORCH_CHECK_VALUE(rows <= 32 * words, "ancestors has ", words, " words a row");
      for (const auto i : irange(rows))
        TORCH_CHECK_VALUE(bits[(bounds[b] + i) * words + i / 32] >> (i % 32) & 1, "ancestors: row ", bounds[b] + i,
                          " does not see itself");
    }
  }
  if (depths) {
    check_vector(*depths, 1, "depths");
    TORCH_CHECK_VALUE(depths->is_contiguous() && depths->numel() == query.size(0), "depths does not fit");
  }
  Tensor out = at::empty(query.sizes(), query.options());
  const Tensor rows = query.stride(2) == 1 ? query : query.contiguous();
  const auto attend = [&](auto number) {
    attend_typed<decltype(number)>(rows, k_cache, v_cache, block_tables, context_lens, cu_rows, ancestors, depths, scale,
                                   window.value_or(0), softcap.value_or(0.0), out);
  };
  if (query.scalar_type() == at::kFloat) attend(float{});
  else if (query.scalar_type() == at::kBFloat16) attend(c10::BFloat16{});
  else attend(c10::Half{});
  return out;
}

void write_kv(const Tensor& keys, const Tensor& values, const Tensor& k_cache, const Tensor& v_cache,
              const Tensor& block_tables, const Tensor& context_lens, const Tensor& cu_rows,
              std::optional<int64_t> max_rows) {
  check(keys, k_cache, v_cache, block_tables, context_lens, cu_rows, max_rows, std::nullopt);
  TORCH_CHECK_VALUE(values.sizes() == keys.sizes() && values.scalar_type() == keys.scalar_type() &&
                        values.device().is_cpu() && keys.size(1) == k_cache.size(2),
                    "keys and values must be [num_rows, kv_heads, head_dim]");
  const int32_t *bounds = cu_rows.const_data_ptr<int32_t>(), *contexts = context_lens.const_data_ptr<int32_t>();
  for (const auto b : irange(context_lens.numel()))
    if (bounds[b + 1] > bounds[b])
      check_blocks(block_tables, k_cache, b, contexts[b], contexts[b] + bounds[b + 1] - bounds[b]);
  const int64_t size = keys.element_size(), heads = keys.size(1), head_dim = keys.size(2), slots = k_cache.size(1);
  const auto copy = [&](const Tensor& given, const Tensor& cache) {
    const Tensor rows = given.stride(2) == 1 ? given : given.contiguous();
    const char* source = static_cast<const char*>(rows.const_data_ptr());
    char* target = static_cast<char*>(cache.data_ptr());
    for (const auto b : irange(context_lens.numel())) {
      const int32_t* table = block_tables.const_data_ptr<int32_t>() + b * block_tables.stride(0);
      for (int64_t row = bounds[b], slot = contexts[b]; row < bounds[b + 1]; ++row, ++slot) {
        const int64_t at = table[slot / slots] * cache.stride(0) + slot % slots * cache.stride(1);
        for (const auto h : irange(heads))
          std::memcpy(target + (at + h * cache.stride(2)) * size,
                      source + (row * rows.stride(0) + h * rows.stride(1)) * size, head_dim * size);
      }
    }
  };
  copy(keys, k_cache);
  copy(values, v_cache);
}

}  // namespace
}  // namespace kadence

TORCH_LIBRARY(kadence_attention, library) {
  library.def(
      "tree_attention(Tensor query, Tensor k_cache, Tensor v_cache, Tensor block_tables, Tensor context_lens, "
      "Tensor cu_rows, Tensor? ancestors, Tensor? depths, float scale, int? sliding_window, float? softcap, "
      "SymInt? max_rows, SymInt? max_context) -> Tensor");
  library.def(
      "write_kv(Tensor keys, Tensor values, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor block_tables, "
      "Tensor context_lens, Tensor cu_rows, SymInt? max_rows) -> ()");
}

TORCH_LIBRARY_IMPL(kadence_attention, CPU, library) {
  library.impl("tree_attention", &kadence::tree_attention);
  library.impl("write_kv", &kadence::write_kv);
}
