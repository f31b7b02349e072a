#include "memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <new>
#include <utility>

#include "numbers.h"

namespace decodeloop {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;

// mmap promises no more than a small page of alignment: map a huge page more, and give back the ends.
char* map_aligned(size_t bytes) {
    const size_t span = bytes + kHugePage;
    void* raw = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) throw std::bad_alloc();
    char* start = static_cast<char*>(raw);
    const size_t head = (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
    if (head != 0) munmap(start, head);
    if (head != kHugePage) munmap(start + head + bytes, kHugePage - head);
#ifdef MADV_HUGEPAGE
    madvise(start + head, bytes, MADV_HUGEPAGE);
#endif
    return start + head;
}

}  // namespace

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    if (this != &other) {
        release();
        data_ = std::exchange(other.data_, nullptr);
        bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
}

Buffer::~Buffer() { release(); }

void Buffer::reserve(size_t bytes) {
    if (bytes <= bytes_) return;
    const size_t rounded = static_cast<size_t>(round_up(static_cast<int64_t>(bytes), kHugePage));
    release();
    data_ = map_aligned(rounded);
    bytes_ = rounded;
}

void Buffer::release() {
    if (data_ != nullptr) munmap(data_, bytes_);
    data_ = nullptr;
    bytes_ = 0;
}

char* Arena::take(size_t bytes) {
    const size_t rounded = static_cast<size_t>(round_up(static_cast<int64_t>(bytes), 64));
    if (rounded > free_) {
        chunks_.emplace_back(rounded > kChunkBytes ? rounded : kChunkBytes);
        free_ = chunks_.back().bytes();
    }
    char* piece = chunks_.back().data() + (chunks_.back().bytes() - free_);
    free_ -= rounded;
    used_ += rounded;
    return piece;
}

size_t huge_page_bytes() {
    std::FILE* file = std::fopen("/proc/self/smaps_rollup", "r");
    if (file == nullptr) return 0;
    char line[256];
    size_t kib = 0;
    while (std::fgets(line, sizeof line, file) != nullptr)
        if (std::sscanf(line, "AnonHugePages: %zu kB", &kib) == 1) break;
    std::fclose(file);
    return kib << 10;
}

}  // namespace decodeloop
