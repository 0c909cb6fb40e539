// Philox-4x32-10 (Salmon et al., SC 2011) for whole rows: what kernels/verify/noise.py computes with arrays of numpy, to
// the bit. No headers of PyTorch, so that it is built in a second.
#include <algorithm>
#include <cstdint>

namespace {

constexpr int kBlock = 64;  // counters worked on together, in registers and the nearest cache

// Four words of each of `kBlock` counters from `first` on, interleaved by lane.
void philox(std::uint32_t first, std::uint64_t position, std::uint64_t seed, std::uint32_t purpose, std::uint32_t* out) {
  std::uint32_t w0[kBlock], w1[kBlock], w2[kBlock], w3[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    w0[i] = first + static_cast<std::uint32_t>(i);
    w1[i] = static_cast<std::uint32_t>(position);
    w2[i] = static_cast<std::uint32_t>(position >> 32);
    w3[i] = purpose;
  }
  auto key0 = static_cast<std::uint32_t>(seed), key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kBlock; ++i) {
      const std::uint64_t p0 = std::uint64_t{w0[i]} * 0xD2511F53u, p2 = std::uint64_t{w2[i]} * 0xCD9E8D57u;
      w0[i] = static_cast<std::uint32_t>(p2 >> 32) ^ w1[i] ^ key0;
      w2[i] = static_cast<std::uint32_t>(p0 >> 32) ^ w3[i] ^ key1;
      w1[i] = static_cast<std::uint32_t>(p2);
      w3[i] = static_cast<std::uint32_t>(p0);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int i = 0; i < kBlock; ++i) {
    out[4 * i] = w0[i];
    out[4 * i + 1] = w1[i];
    out[4 * i + 2] = w2[i];
    out[4 * i + 3] = w3[i];
  }
}

}  // namespace

// out: [rows, count] float32 strictly inside (0, 1); count: a multiple of 4.
extern "C" void kadence_uniforms(
    const std::uint64_t* seeds, const std::uint64_t* positions, std::int64_t rows, std::int64_t count,
    std::uint32_t purpose, float* out) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t start = 0; start < count; start += 4 * kBlock) {
      std::uint32_t words[4 * kBlock];
      philox(static_cast<std::uint32_t>(start / 4), positions[row], seeds[row], purpose, words);
      const std::int64_t n = std::min<std::int64_t>(4 * kBlock, count - start);
      float* to = out + row * count + start;
      for (std::int64_t i = 0; i < n; ++i)
        to[i] = std::min(static_cast<float>(words[i]) * 0x1p-32f + 0x1p-33f, 1.0f - 0x1p-24f);
    }
  }
}
