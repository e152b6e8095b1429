// What this processor's instructions can do at best, on registers alone, and how fast it reads memory.

#include <immintrin.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kSums = 12;  // chains of sums that do not wait for each other
constexpr double kSeconds = 0.3;
volatile int32_t sink;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Each returns the operations of so many turns; a product and its sum are two.
__attribute__((target("avx2"))) double int8_avx2(long turns) {
    __m256i sums[kSums], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-2), ones = _mm256_set1_epi16(1);
    for (auto& sum : sums) sum = _mm256_setzero_si256();
    for (long turn = 0; turn < turns; turn++) {
#pragma GCC unroll 12
        for (int i = 0; i < kSums; i++) {
            asm volatile("" : "+x"(a));  // else one product would do for all
            sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
        }
    }
    for (auto& sum : sums) sink = _mm256_extract_epi32(sum, 0);
    return 2.0 * 32 * kSums * turns;
}

__attribute__((target("avx512f,avx512vnni"))) double int8_vnni(long turns) {
    __m512i sums[kSums], a = _mm512_set1_epi32(0x01020304), b = _mm512_set1_epi32(0x7f01ff02);
    for (auto& sum : sums) sum = _mm512_setzero_si512();
    for (long turn = 0; turn < turns; turn++) {
#pragma GCC unroll 12
        for (int i = 0; i < kSums; i++) sums[i] = _mm512_dpbusd_epi32(sums[i], a, b);
    }
    for (auto& sum : sums) sink = _mm512_reduce_add_epi32(sum);
    return 2.0 * 64 * kSums * turns;
}

__attribute__((target("avx512f,avx512bf16"))) double bf16_avx512(long turns) {
    __m512 sums[kSums];
    __m512bh a, b;
    std::memset(&a, 0x3f, sizeof a);
    std::memset(&b, 0x3e, sizeof b);
    for (auto& sum : sums) sum = _mm512_setzero_ps();
    for (long turn = 0; turn < turns; turn++) {
#pragma GCC unroll 12
        for (int i = 0; i < kSums; i++) sums[i] = _mm512_dpbf16_ps(sums[i], a, b);
    }
    for (auto& sum : sums) sink = static_cast<int32_t>(_mm512_reduce_add_ps(sum));
    return 2.0 * 32 * kSums * turns;
}

__attribute__((target("amx-tile,amx-bf16"))) double bf16_amx(long turns) {
    alignas(64) uint8_t config[64] = {1};
    alignas(64) static const uint8_t zeros[1024] = {};
    for (int tile = 0; tile < 8; tile++) {
        config[16 + 2 * tile] = 64;  // bytes of a row
        config[48 + tile] = 16;      // rows
    }
    _tile_loadconfig(config);
    asm volatile("" ::: "memory");
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, zeros, 64);
    _tile_loadd(5, zeros, 64);
    _tile_loadd(6, zeros, 64);
    _tile_loadd(7, zeros, 64);
    for (long turn = 0; turn < turns; turn++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
    return 2.0 * 16 * 16 * 32 * 4 * turns;
}

using Work = double (*)(long);
const Work kWorks[] = {int8_avx2, int8_vnni, bf16_avx512, bf16_amx};

__attribute__((target("avx2"))) void sum_up(const char* from, long num_bytes) {
    __m256i sums[8];
    for (auto& sum : sums) sum = _mm256_setzero_si256();
    for (const char* at = from; at < from + num_bytes; at += 256) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            sums[i] = _mm256_xor_si256(sums[i], _mm256_load_si256(reinterpret_cast<const __m256i*>(at) + i));
    }
    for (auto& sum : sums) sink = _mm256_extract_epi32(sum, 0);
}

template <typename Act>
void in_threads(int threads, Act act) {
    std::vector<std::thread> running;
    for (int i = 0; i < threads; i++) running.emplace_back(act, i);
    for (auto& one : running) one.join();
}

}  // namespace

// Operations a second of one kind of instruction, by so many threads.
extern "C" double operations_per_s(int kind, int threads) {
    std::atomic<long> millions{0};
    auto start = Clock::now();
    in_threads(threads, [&](int) {
        double done = 0;
        while (seconds_since(start) < kSeconds) done += kWorks[kind](1 << 14);
        millions += static_cast<long>(done / 1e6);
    });
    return 1e6 * millions / seconds_since(start);
}

// Bytes a second that are read from memory in huge pages: the best of some rounds.
extern "C" double read_bytes_per_s(long num_bytes, int threads) {
    void* memory = mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 0;
    madvise(memory, num_bytes, MADV_HUGEPAGE);
    std::memset(memory, 1, num_bytes);
    const long part = num_bytes / threads / 256 * 256;
    double best = 0;
    for (int round = 0; round < 7; round++) {
        auto start = Clock::now();
        in_threads(threads, [&](int i) { sum_up(static_cast<char*>(memory) + i * part, part); });
        double speed = part * threads / seconds_since(start);
        if (speed > best) best = speed;
    }
    munmap(memory, num_bytes);
    return best;
}
