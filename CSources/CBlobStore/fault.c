/* The one seam for injected faults: tests put a hook here and make a named step of the store path fail, wait or die. */
#include "internal.h"

static _Atomic(bcs_fault_hook) current_hook;
static void *_Atomic current_context;

void bcs_set_fault_hook(bcs_fault_hook hook, void *context) {
  atomic_store(&current_context, context);
  atomic_store(&current_hook, hook);
}

int bcsi_fault(const char *step) {
  bcs_fault_hook hook = atomic_load_explicit(&current_hook, memory_order_acquire);
  return hook ? hook(step, atomic_load(&current_context)) : 0;
}
