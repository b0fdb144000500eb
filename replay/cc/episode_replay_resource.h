// The TensorFlow resource of the ops of the replay of episodes.
#ifndef SCALABLE_AGENTS_REPLAY_CC_EPISODE_REPLAY_RESOURCE_H_
#define SCALABLE_AGENTS_REPLAY_CC_EPISODE_REPLAY_RESOURCE_H_

#include <string>
#include <utility>
#include <vector>

#include "ops/cc/field.h"
#include "replay/cc/episode_replay.h"
#include "tensorflow/core/framework/resource_base.h"

namespace scalable_agents {

// A replay of episodes, and the types and shapes of what it holds.
class EpisodeReplayResource : public tensorflow::ResourceBase {
 public:
  EpisodeReplayResource(const EpisodeReplayOptions& options, std::vector<Field> rows)
      : rows(std::move(rows)), replay(options) {}
  std::string DebugString() const override { return "EpisodeReplay"; }

  const std::vector<Field> rows;  // As they are stored.
  EpisodeReplay replay;
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_REPLAY_CC_EPISODE_REPLAY_RESOURCE_H_
