// C ABI of the native CPU decoder. build.py compiles this file, abi.py calls it, and
// model/decoders/native.py implements the decoder interface of model/decoders/base.py with it.

#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)
// gcc schedules Arm instructions before register allocation, which makes it spill sums.
#pragma GCC optimize("no-schedule-insns")
#endif

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <system_error>

#include "decoder.h"
#include "peaks.h"

// Return values of calls, mirrored in kernels/native/abi.py.
namespace {
enum Status { DONE = 0, BAD_SLOTS = 1, BAD_LENGTHS = 2 };
}

// All other symbols are hidden, so that builds for several ISAs can be loaded in one process.
#pragma GCC visibility push(default)
extern "C" {

// Open a decoder. The weights and the structs are copied; the arrays that `arrays` points to must outlive
// the decoder. On failure return null and write the reason to `error`.
scanline::Decoder* scanline_open(const Config* config, const Weights* weights, const Arrays* arrays,
                                 char* error, int size) {
    const scanline::DefaultFloatMode mode;
    try {
        return new scanline::Decoder(*config, *weights, *arrays);
    } catch (const std::system_error&) {
        std::snprintf(error, static_cast<size_t>(size),
                      "%d threads cannot be started: use fewer threads", config->threads);
    } catch (const std::bad_alloc&) {
        std::snprintf(error, static_cast<size_t>(size), "not enough memory: use fewer slots");
    } catch (const std::exception& other) {
        std::snprintf(error, static_cast<size_t>(size), "%s", other.what());
    }
    return nullptr;
}

void scanline_close(scanline::Decoder* decoder) { delete decoder; }

// Decide up to n more pixels of each slot. Entries of -1 are ignored.
int scanline_step(scanline::Decoder* decoder, const int32_t* slots, int count, int n) {
    const scanline::DefaultFloatMode mode;
    if (!decoder->collect(slots, count, true)) return BAD_SLOTS;
    decoder->step(n);
    return DONE;
}

// Reset slots and prefill their first `lengths` pixels. `slots` includes twins, and no -1.
int scanline_begin(scanline::Decoder* decoder, const int32_t* slots, const int32_t* lengths,
                   int count) {
    const scanline::DefaultFloatMode mode;
    if (!decoder->collect(slots, count, false)) return BAD_SLOTS;
    return decoder->begin(lengths) ? DONE : BAD_LENGTHS;
}

// Copy the whole states of sources to targets. No target may be a source.
void scanline_copy(scanline::Decoder* decoder, const int32_t* sources, const int32_t* targets,
                   int count) {
    decoder->copy(sources, targets, count);
}

// The states of all slots, contiguous, and the number of floats per slot. A slot's state is float32
// [L, H, K + 1, V padded], where the last row of each head is z, then the rings [L, 2, ring, D padded].
float* scanline_states(scanline::Decoder* decoder) { return decoder->states(); }
int64_t scanline_slot_state(const Config* config) {
    return static_cast<int64_t>(scanline::Sizes(*config).slot_state);
}

// From now on also write every row's head parameters to float32 [slots, steps, head_outputs]; null to
// stop.
void scanline_trace(scanline::Decoder* decoder, float* parameters) { decoder->trace(parameters); }

// Number of passes through the network so far, and the totals of their rows and of the bytes of weights
// and attention sums that they moved.
void scanline_pass_counts(const scanline::Decoder* decoder, int64_t counts[3]) {
    decoder->pass_counts(counts);
}

// Number of teams, and of their threads in total, that step `count` slots.
void scanline_partition(const scanline::Decoder* decoder, int count, int result[2]) {
    const auto [teams, threads] = decoder->partition_for(count);
    result[0] = teams;
    result[1] = threads;
}

// Measure the machine's peaks with `threads` threads, which takes a few seconds: operations/s in each
// precision, and bytes/s read from 12 MB (a network's weights) and from 512 MB. 0 if a measurement
// fails.
void scanline_measure(int threads, double peaks[6]) {
    std::fill_n(peaks, 6, 0.0);
    try {
        scanline::ThreadPool pool(threads);
        peaks[0] = scanline::peak_operations<scanline::Format::FLOAT32>(pool);
        peaks[1] = scanline::peak_operations<scanline::Format::BF16>(pool);
        peaks[2] = scanline::peak_operations<scanline::Format::INT16>(pool);
        peaks[3] = scanline::peak_operations<scanline::Format::INT8>(pool);
        peaks[4] = scanline::read_bandwidth(pool, size_t{12} << 20);
        peaks[5] = scanline::read_bandwidth(pool, size_t{512} << 20);
    } catch (const std::exception&) {
        return;
    }
}

// Measure the bytes/s that `threads` threads read repeatedly from memory of this size. 0 if it fails.
double scanline_bandwidth(int threads, int64_t bytes) {
    try {
        scanline::ThreadPool pool(threads);
        return scanline::read_bandwidth(pool, static_cast<size_t>(bytes));
    } catch (const std::exception&) {
        return 0.0;
    }
}

// The ISA this was built for.
const char* scanline_isa() {
#if defined(__AMX_INT8__)
    return "amx";
#elif defined(__AVX512BF16__)
    return "avx512bf16";
#elif defined(__AVX512VNNI__)
    return "avx512vnni";
#elif defined(__AVX512F__)
    return "avx512";
#elif defined(__AVXVNNI__)
    return "avxvnni";
#elif defined(__AVX2__) && defined(__FMA__)
    return "avx2";
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return "neonbf16";
#elif defined(__ARM_FEATURE_DOTPROD)
    return "neondot";
#elif defined(__aarch64__)
    return "neon";  // the build `portable` of cpu.py, which is not slow on Arm
#else
    return "portable";
#endif
}
}
#pragma GCC visibility pop
