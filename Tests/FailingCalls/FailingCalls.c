/* Which call fails: see FailingCalls.h. InFront.c has the functions. */
#include "FailingCalls.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum fault_number {
#define NUMBER(name, code) N_##name,
  FAILING_FAULTS(NUMBER)
#undef NUMBER
  FAULT_COUNT
};

enum {
#define BIT(name, code) F_##name = 1 << N_##name,
  FAILING_FAULTS(BIT)
#undef BIT
};

static const struct { const char *name; unsigned faults; } calls[] = {
#define ROW(name, text, faults) {text, faults},
  FAILING_CALLS(ROW)
#undef ROW
};

static const struct { const char *name; int code; } faults[] = {
#define ROW(name, code) {#name, code},
  FAILING_FAULTS(ROW)
#undef ROW
};

const char *failing_call_name(int call) { return call < FAILING_CALL_COUNT ? calls[call].name : NULL; }
const char *failing_fault_name(int fault) { return fault < FAULT_COUNT ? faults[fault].name : NULL; }

/* ---- whose calls */

typedef struct range { uintptr_t from, to; } range;
enum { FUNCTIONS = 8192, SPANS = 256 };
static range core[SPANS], lmdb;
static size_t core_count;

static int by_address(const void *a, const void *b) {
  const range *left = a, *right = b;
  return left->from < right->from ? -1 : left->from > right->from;
}

/* The local functions that follow the name of one of the core's files, and the global ones with its prefix. */
static void take_functions(const uint8_t *file, uintptr_t base) {
  static range functions[FUNCTIONS];
  size_t count = 0;
  const Elf64_Ehdr *head = (const void *)file;
  const Elf64_Shdr *sections = (const void *)(file + head->e_shoff);
  for (int s = 0; s < head->e_shnum; s++) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const Elf64_Sym *symbols = (const void *)(file + sections[s].sh_offset);
    const char *names = (const char *)file + sections[sections[s].sh_link].sh_offset;
    bool ours = false;
    for (size_t i = 0; i < sections[s].sh_size / sizeof *symbols; i++) {
      const char *name = names + symbols[i].st_name;
      size_t length = strlen(name);
      int type = ELF64_ST_TYPE(symbols[i].st_info);
      if (type == STT_FILE)
        ours = length > 2 && strcmp(name + length - 2, ".c") == 0 && strcmp(name, "FailingCalls.c") != 0 &&
               strcmp(name, "InFront.c") != 0 && strcmp(name, "Recorder.c") != 0 && strcmp(name, "crtstuff.c") != 0;
      if (type != STT_FUNC || symbols[i].st_size == 0) continue;
      bool is_local = ELF64_ST_BIND(symbols[i].st_info) == STB_LOCAL;
      if (is_local ? !ours : strncmp(name, "bcs", 3) != 0) continue;
      if (count < FUNCTIONS)
        functions[count++] = (range){base + symbols[i].st_value, base + symbols[i].st_value + symbols[i].st_size};
    }
  }
  qsort(functions, count, sizeof *functions, by_address);
  for (size_t i = 0; i < count; i++) {
    /* Functions are aligned to 16; a call at the very end of one returns to the byte behind it. */
    if (core_count > 0 && functions[i].from <= core[core_count - 1].to + 16) core[core_count - 1].to = functions[i].to;
    else if (core_count < SPANS) core[core_count++] = functions[i];
  }
}

static int look_at(struct dl_phdr_info *info, size_t size, void *base) {
  (void)size;
  if (info->dlpi_name[0] == 0 && *(uintptr_t *)base == 0) *(uintptr_t *)base = info->dlpi_addr;
  if (!strstr(info->dlpi_name, "liblmdb")) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_LOAD && (info->dlpi_phdr[i].p_flags & PF_X)) {
      lmdb.from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
      lmdb.to = lmdb.from + info->dlpi_phdr[i].p_memsz;
    }
  return 0;
}

static uintptr_t program_base;

static void find_callers(void) {
  struct stat st;
  dl_iterate_phdr(look_at, &program_base);
  int file = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/exe", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  if (syscall(SYS_fstat, file, &st) == 0) {
    void *map = (void *)syscall(SYS_mmap, NULL, st.st_size, PROT_READ, MAP_PRIVATE, file, 0L);
    if (map != MAP_FAILED) {
      take_functions(map, program_base);
      (void)syscall(SYS_munmap, map, st.st_size);
    }
  }
  (void)syscall(SYS_close, file);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool is_in(const range *r, const void *address) {
  return (uintptr_t)address > r->from && (uintptr_t)address <= r->to;
}

static bool is_core(const void *caller) {
  for (size_t i = 0; i < core_count; i++)
    if (is_in(&core[i], caller)) return true;
  return false;
}

/* ---- the fault */

static _Atomic bool armed;
__attribute__((unused)) static _Atomic bool tracking; /* under a sanitizer nothing is tracked */
static int armed_fault;
static long armed_nth;
static bool armed_on;
static _Atomic long reached;
static _Atomic long struck[FAILING_CALL_COUNT];

bool failing_calls_work(void) {
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  return false;
#else
  pthread_once(&once, find_callers);
  return core_count > 0 && lmdb.to > 0;
#endif
}

void failing_arm(int fault, long nth, bool goes_on) {
  pthread_once(&once, find_callers);
  armed_fault = fault;
  armed_nth = nth;
  armed_on = goes_on;
  for (int i = 0; i < FAILING_CALL_COUNT; i++) atomic_store(&struck[i], 0);
  atomic_store(&reached, 0);
  atomic_store(&armed, true);
}

long failing_disarm(long of[FAILING_CALL_COUNT]) {
  long all = 0;
  atomic_store(&armed, false);
  for (int i = 0; i < FAILING_CALL_COUNT; i++) {
    of[i] += atomic_load(&struck[i]);
    all += atomic_load(&struck[i]);
  }
  return all;
}

static bool strikes(failing_call call, const void *caller, int fault) {
  if (!atomic_load_explicit(&armed, memory_order_acquire) || armed_fault != fault) return false;
  if (!(calls[call].faults & (1u << fault))) return false;
  /* What LMDB has of itself through its own interface is its own affair; memory is asked for by the core. */
  bool is_meant = is_core(caller) || (call != FAILING_MEMORY && call != FAILING_LMDB && is_in(&lmdb, caller));
  if (!is_meant) return false;
  long number = atomic_fetch_add(&reached, 1) + 1;
  bool here = number == armed_nth || (armed_on && number > armed_nth && (fault != N_INTR || (number - armed_nth) % 2 == 0));
  if (here) atomic_fetch_add(&struck[call], 1);
  return here;
}

bool failing_strikes(failing_call call, const void *caller) {
  if (!atomic_load_explicit(&armed, memory_order_relaxed) || armed_fault == N_SHORT) return false;
  if (!strikes(call, caller, armed_fault)) return false;
  errno = faults[armed_fault].code;
  return true;
}

size_t failing_shortens(failing_call call, const void *caller, size_t count) {
  if (!atomic_load_explicit(&armed, memory_order_relaxed) || count < 2) return count;
  return strikes(call, caller, N_SHORT) ? (count + 1) / 2 : count;
}

/* ---- memory: each allocation of the core and of LMDB is noted, and struck out when it is freed */

#if !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

enum { NOTES = 1 << 16 };
static struct { uintptr_t pointer, caller; long number; } notes[NOTES]; /* open addressing; 1: was one */
static pthread_mutex_t notes_lock = PTHREAD_MUTEX_INITIALIZER;
static long live, noted;

static size_t place_of(uintptr_t pointer) { return (size_t)((pointer >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 48) % NOTES; }

static void note(void *made, const void *caller) {
  if (!made || !atomic_load_explicit(&tracking, memory_order_relaxed)) return;
  if (!is_core(caller) && !is_in(&lmdb, caller)) return;
  pthread_mutex_lock(&notes_lock);
  for (size_t at = place_of((uintptr_t)made), i = 0; i < NOTES; at = (at + 1) % NOTES, i++)
    if (notes[at].pointer <= 1) {
      notes[at].pointer = (uintptr_t)made;
      notes[at].caller = (uintptr_t)caller;
      notes[at].number = ++noted;
      live++;
      break;
    }
  pthread_mutex_unlock(&notes_lock);
}

static void strike_out(void *gone) {
  if (!gone || !atomic_load_explicit(&tracking, memory_order_relaxed)) return;
  pthread_mutex_lock(&notes_lock);
  for (size_t at = place_of((uintptr_t)gone), i = 0; i < NOTES && notes[at].pointer != 0; at = (at + 1) % NOTES, i++)
    if (notes[at].pointer == (uintptr_t)gone) {
      notes[at].pointer = notes[(at + 1) % NOTES].pointer == 0 ? 0 : 1;
      live--;
      break;
    }
  pthread_mutex_unlock(&notes_lock);
}

long failing_live_allocations(void) {
  pthread_once(&once, find_callers);
  atomic_store(&tracking, true);
  return live;
}

long failing_allocation_mark(void) { return noted; }

void failing_describe_allocations(long mark, char *out, size_t capacity) {
  size_t used = 0;
  out[0] = 0;
  pthread_mutex_lock(&notes_lock);
  for (size_t i = 0; i < NOTES && used + 32 < capacity; i++)
    if (notes[i].pointer > 1 && notes[i].number > mark)
      used += (size_t)snprintf(out + used, capacity - used, "%#lx ", notes[i].caller - program_base);
  pthread_mutex_unlock(&notes_lock);
}

void *malloc(size_t count) {
  if (failing_strikes(FAILING_MEMORY, FAILING_CALLER)) return NULL;
  void *made = __libc_malloc(count);
  note(made, FAILING_CALLER);
  return made;
}
void *calloc(size_t count, size_t size) {
  if (failing_strikes(FAILING_MEMORY, FAILING_CALLER)) return NULL;
  void *made = __libc_calloc(count, size);
  note(made, FAILING_CALLER);
  return made;
}
void *realloc(void *old, size_t count) {
  if (failing_strikes(FAILING_MEMORY, FAILING_CALLER)) return NULL;
  strike_out(old);
  void *made = __libc_realloc(old, count);
  note(made, FAILING_CALLER);
  return made;
}
void *memalign(size_t alignment, size_t count) {
  if (failing_strikes(FAILING_MEMORY, FAILING_CALLER)) return NULL;
  return __libc_memalign(alignment, count);
}
void *aligned_alloc(size_t alignment, size_t count) {
  if (failing_strikes(FAILING_MEMORY, FAILING_CALLER)) return NULL;
  return __libc_memalign(alignment, count);
}
int posix_memalign(void **out, size_t alignment, size_t count) {
  int before = errno;
  if (failing_strikes(FAILING_MEMORY, FAILING_CALLER)) {
    errno = before;
    return ENOMEM;
  }
  void *made = __libc_memalign(alignment, count);
  errno = before;
  if (!made) return ENOMEM;
  note(made, FAILING_CALLER);
  *out = made;
  return 0;
}
void free(void *gone) {
  strike_out(gone);
  __libc_free(gone);
}

#else

long failing_live_allocations(void) { return 0; }
long failing_allocation_mark(void) { return 0; }
void failing_describe_allocations(long mark, char *out, size_t capacity) { (void)mark, (void)capacity, out[0] = 0; }

#endif

#endif
