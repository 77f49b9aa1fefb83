// The native CPU decoder's plain C ABI. build.py builds this file, abi.py calls it, and
// model/decoders/native.py adapts it to model/decoders/base.py, which says what every call does.

#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)
// gcc orders Arm's instructions before it gives them registers, and spills sums for it.
#pragma GCC optimize("no-schedule-insns")
#endif

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <system_error>

#include "decoder.h"
#include "peaks.h"

// What calls return; kernels/native/abi.py knows these.
namespace {
enum Status { DONE = 0, BAD_SLOTS = 1, BAD_LENGTHS = 2 };
}

// All else of ours stays hidden (the standard library's is loaded locally), so that builds for several
// ISAs can live in one process.
#pragma GCC visibility push(default)
extern "C" {

// Copies the weights; keeps the `arrays`. Null where memory or threads are short, the reason in
// `error`.
scanline::Decoder* scanline_open(const Config* config, const Weights* weights, const Arrays* arrays,
                                 char* error, int size) {
    try {
        return new scanline::Decoder(*config, *weights, *arrays);
    } catch (const std::system_error&) {
        std::snprintf(error, static_cast<size_t>(size), "%d threads cannot be had: ask for fewer",
                      config->threads);
    } catch (const std::bad_alloc&) {
        std::snprintf(error, static_cast<size_t>(size), "memory is short: open fewer slots");
    } catch (const std::exception& other) {
        std::snprintf(error, static_cast<size_t>(size), "%s", other.what());
    }
    return nullptr;
}

void scanline_close(scanline::Decoder* decoder) { delete decoder; }

int scanline_step(scanline::Decoder* decoder, const int32_t* slots, int count, int n) {
    if (!decoder->collect(slots, count, true)) return BAD_SLOTS;
    decoder->step(n);
    return DONE;
}

// `lengths` belongs to `slots`, twins among them, in which no -1 may stand.
int scanline_begin(scanline::Decoder* decoder, const int32_t* slots, const int32_t* lengths,
                   int count) {
    if (!decoder->collect(slots, count, false)) return BAD_SLOTS;
    return decoder->begin(lengths) ? DONE : BAD_LENGTHS;
}

// All of the state from sources to targets, none of which is a source.
void scanline_copy(scanline::Decoder* decoder, const int32_t* sources, const int32_t* targets,
                   int count) {
    decoder->copy(sources, targets, count);
}

// All slots' states, one after another, and how many floats one has: float32 [L, H, K + 1, V padded],
// the last row of each head z, then the rings [L, 2, ring, D padded].
float* scanline_states(scanline::Decoder* decoder) { return decoder->states(); }
int64_t scanline_slot_state(const Config* config) {
    return static_cast<int64_t>(scanline::Sizes(*config).slot_state);
}
int scanline_head_padded(const scanline::Decoder* decoder) { return decoder->sizes().head_padded; }

// Write every row's head parameters to float32 [slots, steps, head_outputs] too; null to stop.
void scanline_trace(scanline::Decoder* decoder, float* parameters) { decoder->trace(parameters); }

// Passes through the network so far, and the rows that they had.
void scanline_pass_counts(const scanline::Decoder* decoder, int64_t counts[2]) {
    decoder->pass_counts(counts);
}

// How so many slots would be stepped: by how many teams, and of how many threads in all.
void scanline_partition(const scanline::Decoder* decoder, int count, int crews[2]) {
    const auto [teams, threads] = decoder->crews_for(count);
    crews[0] = teams;
    crews[1] = threads;
}

// The machine's peaks with so many threads: operations a second in each precision, and bytes read
// a second from 12 MB (a network's weights) and from 512 MB. Takes some seconds; 0 where it fails.
void scanline_measure(int threads, double peaks[6]) {
    std::fill_n(peaks, 6, 0.0);
    try {
        scanline::Pool pool(threads);
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

// Bytes a second that so many threads read, again and again, of memory of this size; 0 where it
// fails.
double scanline_bandwidth(int threads, int64_t bytes) {
    try {
        scanline::Pool pool(threads);
        return scanline::read_bandwidth(pool, static_cast<size_t>(bytes));
    } catch (const std::exception&) {
        return 0.0;
    }
}

// The instructions this was built for.
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
    return "neon";
#else
    return "portable";
#endif
}
}
#pragma GCC visibility pop
