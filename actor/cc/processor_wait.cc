#include "actor/cc/processor_wait.h"

#include <fstream>
#include <string>

namespace scalable_agents {

int64_t ProcessorWaitNs(int64_t process_id) {
  std::ifstream file("/proc/" + std::to_string(process_id) + "/schedstat");
  int64_t running_ns, waiting_ns;
  return file >> running_ns >> waiting_ns ? waiting_ns : 0;
}

}  // namespace scalable_agents
