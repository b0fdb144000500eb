// A mutex whose use clang checks: `make lint` finds guarded members that are used without it. Other compilers see none
// of these annotations.
#ifndef SCALABLE_AGENTS_OPS_CC_MUTEX_H_
#define SCALABLE_AGENTS_OPS_CC_MUTEX_H_

#include <mutex>

#ifdef __clang__
#define SCALABLE_AGENTS_CHECKED(attribute) __attribute__((attribute))
#else
#define SCALABLE_AGENTS_CHECKED(attribute)
#endif

// After the name of a member: it may only be used while `mutex` is held.
#define GUARDED_BY(mutex) SCALABLE_AGENTS_CHECKED(guarded_by(mutex))
// After the declaration of a function: the caller holds `mutex`.
#define REQUIRES(mutex) SCALABLE_AGENTS_CHECKED(requires_capability(mutex))

namespace scalable_agents {

class SCALABLE_AGENTS_CHECKED(capability("mutex")) Mutex {
 public:
  // Tells clang that the mutex is held, in a lambda that is called while it is. Clang checks lambdas on their own.
  void AssertHeld() const SCALABLE_AGENTS_CHECKED(assert_capability(this)) {}

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex until it is unlocked or destroyed.
class SCALABLE_AGENTS_CHECKED(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) SCALABLE_AGENTS_CHECKED(acquire_capability(mutex)) : lock_(mutex.mutex_) {}
  ~MutexLock() SCALABLE_AGENTS_CHECKED(release_capability()) {}

  void Unlock() SCALABLE_AGENTS_CHECKED(release_capability()) { lock_.unlock(); }
  void Lock() SCALABLE_AGENTS_CHECKED(acquire_capability()) { lock_.lock(); }

  // For the wait of a std::condition_variable, which releases the mutex and takes it again.
  std::unique_lock<std::mutex>& lock() { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_OPS_CC_MUTEX_H_
