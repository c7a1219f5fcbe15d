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
constexpr Bytes kLeastReserved = Bytes{64} << 20;

Bytes RoundUp(Bytes bytes, Bytes unit) { return (bytes + unit - 1) / unit * unit; }

Bytes PageBytes() { return static_cast<Bytes>(sysconf(_SC_PAGESIZE)); }

// Whole huge pages once the buffer is large: one fault for 2 MiB, not for 4 KiB.
Bytes CommittedFor(Bytes bytes) {
  return RoundUp(bytes, bytes >= kHugePage ? kHugePage : PageBytes());
}

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

// As much as the machine has: more can never be committed. Many tables on a large
// machine, or a limit on addresses, leave less: then half of it, and so on.
Status GrowableHostBuffer::Reserve(Bytes at_least) {
  const Bytes least = std::max(RoundUp(at_least, kHugePage), kLeastReserved);
  for (Bytes wanted = RoundUp(PhysicalBytes(), kHugePage); wanted >= least; wanted /= 2) {
    wanted = RoundUp(wanted, kHugePage);
    void* base = mmap(nullptr, static_cast<size_t>(wanted), PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) continue;
    base_ = static_cast<std::byte*>(base);
    reserved_ = wanted;
    return Status();
  }
  return MemoryError("could not reserve ", least, " bytes of address space (", std::strerror(errno),
                     "); raise the limit (ulimit -v) or close tables that are not used.");
}

Status GrowableHostBuffer::Commit(Bytes bytes) {
  if (bytes <= committed_) return Status();
  const Bytes target = CommittedFor(bytes);
  Bytes more = target - committed_;
  Bytes available = AvailableBytes();
  const bool beyond = base_ != nullptr && target > reserved_;
  if (beyond || (available >= 0 && more > available)) {
    return MemoryError(
        "host memory exhausted: a table needs ", more, " more bytes, the machine has ", available,
        " available of ", PhysicalBytes(),
        "; close tables that are not used (dynemb_jax.close), lower initial_rows or set max_bytes "
        "in TableConfig, or use fewer or narrower rows.");
  }
  if (base_ == nullptr) DYNEMB_RETURN_IF_ERROR(Reserve(target));
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

void GrowableHostBuffer::Shrink(Bytes bytes) {
  const Bytes target = CommittedFor(bytes);
  if (target >= committed_) return;
  // A new reservation in place of the old pages. Should it fail, they stay.
  void* const placed = mmap(base_ + target, static_cast<size_t>(committed_ - target), PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (placed != MAP_FAILED) committed_ = target;
}

void GrowableHostBuffer::Release() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(reserved_));
  base_ = nullptr;
  reserved_ = committed_ = 0;
}

}  // namespace dynemb
