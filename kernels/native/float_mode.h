// Floating-point mode of a thread.
#pragma once

#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace scanline {

// Sets the thread's floating-point mode to IEEE 754's default (rounding to nearest even, denormals kept),
// and restores the caller's at the end of its scope. PyTorch's `set_flush_denormal` changes it, and new
// threads inherit it.
class DefaultFloatMode {
public:
    DefaultFloatMode() : saved_(read()) { write(DEFAULT); }
    ~DefaultFloatMode() { write(saved_); }
    DefaultFloatMode(const DefaultFloatMode&) = delete;
    DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

private:
#if defined(__SSE2__)
    static constexpr uint64_t DEFAULT = 0x1f80;  // MXCSR with all exceptions masked
    static uint64_t read() { return _mm_getcsr(); }
    static void write(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
    static constexpr uint64_t DEFAULT = 0;
    static uint64_t read() {
        uint64_t mode;
        asm volatile("mrs %0, fpcr" : "=r"(mode)::"memory");
        return mode;
    }
    static void write(uint64_t mode) { asm volatile("msr fpcr, %0" ::"r"(mode) : "memory"); }
#else
    static constexpr uint64_t DEFAULT = 0;
    static uint64_t read() { return 0; }
    static void write(uint64_t) {}
#endif

    const uint64_t saved_;
};

}  // namespace scanline
