// Memory for what every step reads: aligned to huge pages and asking for them before the first touch.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace decodeloop {

// A zeroed block of memory that grows by being replaced. Aligned to 2 MiB.
class Buffer {
public:
    Buffer() = default;
    explicit Buffer(size_t bytes) { reserve(bytes); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer();

    // At least `bytes`, all zero if it had to grow. Throws std::bad_alloc.
    void reserve(size_t bytes);
    void release();

    char* data() const { return data_; }
    size_t bytes() const { return bytes_; }

private:
    char* data_ = nullptr;
    size_t bytes_ = 0;
};

// Hands out pieces of large buffers in order of asking: weights that are read one after the other lie so.
class Arena {
public:
    // 64-byte aligned and zeroed; lives as long as the arena.
    char* take(size_t bytes);
    size_t bytes() const { return used_; }

private:
    static constexpr size_t kChunkBytes = size_t{64} << 20;
    std::vector<Buffer> chunks_;
    size_t free_ = 0;  // left in the last chunk
    size_t used_ = 0;
};

// Bytes of this process that huge pages hold now (0 where the system does not say).
size_t huge_page_bytes();

}  // namespace decodeloop
