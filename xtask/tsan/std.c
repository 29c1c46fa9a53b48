/* What ThreadSanitizer cannot see of the standard library, told to it.
 *
 * std comes compiled, without the sanitizer. What is inlined of it into our code is seen: a mutex's uncontended lock and
 * its unlock, the check of a Once, the count at a scope's end. The other halves are in std, so that a lock that was
 * contended seems to order nothing, and all that a mutex protects seems to race. The linker (--wrap) leads calls of
 * these halves here; each does its work and says what it orders, no more than std's own atomic operation does, on the
 * same address.
 *
 * cargo xtask tsan gives the names, which have a hash of std's in them. Rust's calling convention for these arguments,
 * pointers and integers, is C's on the platforms where this is used.
 */

#include <stdbool.h>
#include <stdint.h>

void __tsan_acquire(void *address);
void __tsan_release(void *address);

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define REAL(name) JOIN(__real_, name)
#define WRAP(name) JOIN(__wrap_, name)

/* std::sys::sync::mutex::futex::Mutex::lock_contended(&self). The mutex is its futex. */
void REAL(LOCK_CONTENDED)(void *mutex);
void WRAP(LOCK_CONTENDED)(void *mutex);
void WRAP(LOCK_CONTENDED)(void *mutex) {
    REAL(LOCK_CONTENDED)(mutex);
    __tsan_acquire(mutex);
}

/* std::sys::sync::condvar::futex::Condvar::wait(&self, &Mutex): unlocks the mutex and locks it again. */
void REAL(CONDVAR_WAIT)(void *condvar, void *mutex);
void WRAP(CONDVAR_WAIT)(void *condvar, void *mutex);
void WRAP(CONDVAR_WAIT)(void *condvar, void *mutex) {
    __tsan_release(mutex);
    REAL(CONDVAR_WAIT)(condvar, mutex);
    __tsan_acquire(mutex);
}

/* The same with a Duration. */
bool REAL(CONDVAR_WAIT_TIMEOUT)(void *condvar, void *mutex, uint64_t seconds, uint32_t nanos);
bool WRAP(CONDVAR_WAIT_TIMEOUT)(void *condvar, void *mutex, uint64_t seconds, uint32_t nanos);
bool WRAP(CONDVAR_WAIT_TIMEOUT)(void *condvar, void *mutex, uint64_t seconds, uint32_t nanos) {
    __tsan_release(mutex);
    bool in_time = REAL(CONDVAR_WAIT_TIMEOUT)(condvar, mutex, seconds, nanos);
    __tsan_acquire(mutex);
    return in_time;
}

/* std::sys::sync::once::futex::Once::call(&self, bool, &mut dyn FnMut(&OnceState), &Location): what the closure wrote is
 * released before the Once is set, so the closure given on is one around it. */
struct around {
    void *closure;
    void *const *vtable;
    void *once;
};

/* Of a vtable of dyn FnMut: drop, size, align, call_once, call_mut. */
enum { CALL_MUT = 4, N_ENTRIES = 5 };

static void call_and_release(struct around *around, void *once_state) {
    void (*call_mut)(void *, void *) = (void (*)(void *, void *))around->vtable[CALL_MUT];
    call_mut(around->closure, once_state);
    __tsan_release(around->once);
}

void REAL(ONCE_CALL)(void *once, bool ignore_poisoning, void *closure, void *const *vtable, void *location);
void WRAP(ONCE_CALL)(void *once, bool ignore_poisoning, void *closure, void *const *vtable, void *location);
void WRAP(ONCE_CALL)(void *once, bool ignore_poisoning, void *closure, void *const *vtable, void *location) {
    struct around around = {closure, vtable, once};
    void *entries[N_ENTRIES];
    for (int i = 0; i < CALL_MUT; i++) {
        entries[i] = vtable[i];
    }
    entries[CALL_MUT] = (void *)call_and_release;
    REAL(ONCE_CALL)(once, ignore_poisoning, &around, entries, location);
    __tsan_acquire(once);
}

/* std::thread::scoped::ScopeData::decrement_num_running_threads(&self, bool): the count is one of the three words.
 * A call from within std stays there: the linker leads only those of other objects here. */
void REAL(SCOPE_DECREMENT)(uint64_t *scope, bool panicked);
void WRAP(SCOPE_DECREMENT)(uint64_t *scope, bool panicked);
void WRAP(SCOPE_DECREMENT)(uint64_t *scope, bool panicked) {
    for (int i = 0; i < 3; i++) {
        __tsan_release(&scope[i]);
    }
    REAL(SCOPE_DECREMENT)(scope, panicked);
}
