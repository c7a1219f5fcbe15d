#include "memory/growable_host_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace dynemb {
namespace {

constexpr Bytes kHugePage = Bytes{2} << 20;

Bytes RoundUp(Bytes bytes, Bytes unit) { return (bytes + unit - 1) / unit * unit; }

Bytes PageBytes() { return static_cast<Bytes>(sysconf(_SC_PAGESIZE)); }

Bytes PhysicalBytes() { return static_cast<Bytes>(sysconf(_SC_PHYS_PAGES)) * PageBytes(); }

// Linux overcommits: without this look, the process would be killed later
// instead of getting an error now. -1 where the kernel does not say.
Bytes AvailableBytes() {
  std::FILE* file = std::fopen("/proc/meminfo", "r");
  if (file == nullptr) return -1;
  char line[128];
  long long kib = -1;
  while (std::fgets(line, sizeof line, file) != nullptr) {
    if (std::sscanf(line, "MemAvailable: %lld kB", &kib) == 1) break;
  }
  std::fclose(file);
  return kib < 0 ? -1 : static_cast<Bytes>(kib) * 1024;
}

}  // namespace

GrowableHostBuffer::~GrowableHostBuffer() { Release(); }

GrowableHostBuffer::GrowableHostBuffer(GrowableHostBuffer&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)),
      reserved_(std::exchange(other.reserved_, 0)),
      committed_(std::exchange(other.committed_, 0)) {}

GrowableHostBuffer& GrowableHostBuffer::operator=(GrowableHostBuffer&& other) noexcept {
  if (this != &other) {
    Release();
    base_ = std::exchange(other.base_, nullptr);
    reserved_ = std::exchange(other.reserved_, 0);
    committed_ = std::exchange(other.committed_, 0);
  }
  return *this;
}

// Twice the machine's memory: more than can ever be committed, yet small enough
// for thousands of tables in a 47-bit address space.
Status GrowableHostBuffer::Reserve() {
  Bytes wanted = RoundUp(2 * PhysicalBytes(), kHugePage);
  void* base = mmap(nullptr, static_cast<size_t>(wanted), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return MemoryError("could not reserve ", wanted, " bytes of address space (",
                       std::strerror(errno),
                       "); raise the address-space limit (ulimit -v) or close unused tables.");
  }
  base_ = static_cast<std::byte*>(base);
  reserved_ = wanted;
  return Status();
}

Status GrowableHostBuffer::Commit(Bytes bytes) {
  if (bytes <= committed_) return Status();
  if (base_ == nullptr) DYNEMB_RETURN_IF_ERROR(Reserve());
  // Whole huge pages once the buffer is large: one fault for 2 MiB, not for 4 KiB.
  Bytes target = RoundUp(bytes, bytes >= kHugePage ? kHugePage : PageBytes());
  Bytes more = target - committed_;
  Bytes available = AvailableBytes();
  if (target > reserved_ || (available >= 0 && more > available)) {
    return MemoryError(
        "host memory exhausted: a table needs ", more, " more bytes, the machine has ", available,
        " available of ", PhysicalBytes(),
        "; set max_bytes in TableConfig, use fewer or narrower rows, or erase keys.");
  }
  std::byte* begin = base_ + committed_;
  if (mprotect(begin, static_cast<size_t>(more), PROT_READ | PROT_WRITE) != 0) {
    return MemoryError("could not commit ", more, " bytes of host memory (", std::strerror(errno),
                       "); the machine has ", available, " bytes available.");
  }
  if (target >= kHugePage) {
    // A hint only: without huge pages everything still works.
    (void)madvise(base_, static_cast<size_t>(target), MADV_HUGEPAGE);
  }
  committed_ = target;
  return Status();
}

void GrowableHostBuffer::Release() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(reserved_));
  base_ = nullptr;
  reserved_ = committed_ = 0;
}

}  // namespace dynemb
