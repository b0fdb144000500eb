// How long a process has waited for a processor.
#ifndef SCALABLE_AGENTS_ACTOR_CC_PROCESSOR_WAIT_H_
#define SCALABLE_AGENTS_ACTOR_CC_PROCESSOR_WAIT_H_

#include <cstdint>

namespace scalable_agents {

// Returns the time in ns in which the main thread of a process was ready to run, but other threads had the processors.
// 0 if there is no such process, or if the kernel does not count this time. processes/machine.py has the same in
// Python.
int64_t ProcessorWaitNs(int64_t process_id);

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_ACTOR_CC_PROCESSOR_WAIT_H_
