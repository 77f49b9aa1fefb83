// Aligned memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace scanline {

// Zeroed memory aligned to 64 bytes. Large buffers use huge pages if the system has them, because
// streaming weights and states through small pages is limited by address translation.
template <typename T>
class Buffer {
public:
    explicit Buffer(size_t count) {
        constexpr size_t HUGE_PAGE = size_t{2} << 20;
        const size_t bytes = (count ? count : 1) * sizeof(T);
        const size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
        memory_ = std::calloc(bytes + alignment, 1);  // untouched pages take no memory
        if (!memory_) throw std::bad_alloc();
        const auto address = reinterpret_cast<uintptr_t>(memory_);
        data_ = reinterpret_cast<T*>((address + alignment - 1) / alignment * alignment);
#if defined(MADV_HUGEPAGE)
        if (alignment == HUGE_PAGE) madvise(data_, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
    }
    Buffer(Buffer&& other) noexcept : memory_(other.memory_), data_(other.data_) {
        other.memory_ = nullptr;
        other.data_ = nullptr;
    }
    ~Buffer() { std::free(memory_); }

    T* get() { return data_; }
    const T* get() const { return data_; }

private:
    void* memory_;
    T* data_;
};

}  // namespace scanline
