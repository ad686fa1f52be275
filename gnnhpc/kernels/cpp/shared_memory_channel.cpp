// A one-way channel between two processes of a machine, in memory that both have mapped.
//
// Two counters say how many messages were sent and taken; message n lies in slot n % slots. One
// thread sends and one takes, so each counter has one writer. A slot is written only when what it
// held was taken, and a message is counted only when it is whole. Who must wait looks for a few
// microseconds, then sleeps in a futex; the other makes the call that wakes it only where it does.

#include <atomic>
#include <climits>
#include <cstdint>
#include <cstring>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u64 LINE = 64;
constexpr int LOOKS = 64;
enum Result { DONE = 0, NOT_YET = 1, OTHER_SIZE = 2 };

// On a cache line of its own. The futex is the lower half of the count.
struct alignas(LINE) Counter {
  std::atomic<u64> count;
  std::atomic<u32> awaited;
};

struct Header {
  Counter sent, taken;
};

static_assert(std::atomic<u64>::is_always_lock_free, "between processes a lock would not work");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "where a count's lower half lies");

Header& header(void* base) { return *static_cast<Header*>(base); }

// A line with the size of a message, and whole lines for the message.
u64 stride(u64 slot_bytes) { return LINE + (slot_bytes + LINE - 1) / LINE * LINE; }

char* slot(void* base, u64 slots, u64 slot_bytes, u64 number) {
  return static_cast<char*>(base) + sizeof(Header) + number % slots * stride(slot_bytes);
}

long futex(Counter& counter, int operation, u32 value, const timespec* timeout) {
  return syscall(SYS_futex, &counter.count, operation, value, timeout, nullptr, 0);
}

// Whether the counter has left `old`; sleeps once, at most `timeout_ms`.
bool wait_for_change(Counter& counter, u64 old, int timeout_ms) {
  for (int look = 0; look < LOOKS; ++look) {
    if (counter.count.load(std::memory_order_acquire) != old) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  // In one order for both processes: either this one sees the count, or the other that it waits.
  counter.awaited.store(1);
  if (counter.count.load() == old) {
    const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    futex(counter, FUTEX_WAIT, static_cast<u32>(old), &timeout);
  }
  counter.awaited.store(0);
  return counter.count.load() != old;
}

void count_one(Counter& counter, u64 old) {
  counter.count.store(old + 1);
  if (counter.awaited.load()) futex(counter, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace

// Bytes of a channel's memory, which must be zero at the beginning.
extern "C" u64 channel_bytes(u64 slots, u64 slot_bytes) {
  return sizeof(Header) + slots * stride(slot_bytes);
}

// Copies a message into its slot; NOT_YET where no slot became free in time, or a signal came.
extern "C" int channel_send(void* base, u64 slots, u64 slot_bytes, const void* from, u64 bytes,
                            int timeout_ms) {
  Counter &sent = header(base).sent, &taken = header(base).taken;
  if (bytes > slot_bytes) return OTHER_SIZE;
  const u64 number = sent.count.load(std::memory_order_relaxed);
  const u64 before = taken.count.load(std::memory_order_acquire);
  if (number - before >= slots && !wait_for_change(taken, before, timeout_ms)) return NOT_YET;
  char* to = slot(base, slots, slot_bytes, number);
  std::memcpy(to, &bytes, sizeof bytes);
  std::memcpy(to + LINE, from, bytes);
  count_one(sent, number);
  return DONE;
}

// Copies the next message, of so many bytes, to `to`; NOT_YET where none came in time, or a signal.
extern "C" int channel_take(void* base, u64 slots, u64 slot_bytes, void* to, u64 bytes,
                            int timeout_ms) {
  Counter &sent = header(base).sent, &taken = header(base).taken;
  const u64 number = taken.count.load(std::memory_order_relaxed);
  if (!wait_for_change(sent, number, timeout_ms)) return NOT_YET;
  const char* from = slot(base, slots, slot_bytes, number);
  u64 found;
  std::memcpy(&found, from, sizeof found);
  if (found != bytes) return OTHER_SIZE;
  std::memcpy(to, from + LINE, bytes);
  count_one(taken, number);
  return DONE;
}
