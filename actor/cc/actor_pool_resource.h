// The TensorFlow resource of the actor pool's ops.
#ifndef SCALABLE_AGENTS_ACTOR_CC_ACTOR_POOL_RESOURCE_H_
#define SCALABLE_AGENTS_ACTOR_CC_ACTOR_POOL_RESOURCE_H_

#include <memory>
#include <string>
#include <vector>

#include "actor/cc/actor_pool.h"
#include "ops/cc/field.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/tensor.h"

namespace scalable_agents {

struct Fields {
  std::vector<Field> environment, output, state;
  std::vector<int64_t> environment_offsets;  // In bytes, in a worker's slot.
  std::vector<int> environment_stacks;       // See EnvironmentField::stack.

  // Environment field i as unrolls have it: of a stack of frames, the newest frame.
  Field InUnroll(size_t i) const {
    Field field = environment[i];
    if (environment_stacks[i] > 1) {
      const int last = field.shape.dims() - 1;
      field.shape.set_dim(last, field.shape.dim_size(last) / environment_stacks[i]);
    }
    return field;
  }
};

// An actor pool that writes its unrolls directly into the tensors that its ops return.
class PoolResource : public tensorflow::ResourceBase {
 public:
  PoolResource(const ActorPool::Options& options, const Fields& fields)
      : fields(fields),
        layout(options.layout),
        pool(options, [this, length = options.layout.unroll_length](int component) {
          return AllocateComponent(component, length);
        }) {
    components.push_back({tensorflow::DT_INT32, {}});  // Level id.
    components.push_back({tensorflow::DT_INT32, {}});  // Actor id.
    components.push_back({tensorflow::DT_INT64, {}});  // Stream id.
    components.push_back({tensorflow::DT_INT64, {}});  // Index.
    for (const Field& field : fields.state) components.push_back(field);
    for (size_t i = 0; i < fields.environment.size(); ++i) {
      const int stack = fields.environment_stacks[i];
      const Field newest = fields.InUnroll(i);
      if (stack > 1) components.push_back({newest.type, Prepend(stack - 1, newest.shape)});  // Earlier frames.
    }
    first_row_component = components.size();
    for (size_t i = 0; i < fields.environment.size(); ++i) components.push_back(fields.InUnroll(i));
    for (const Field& field : fields.output) components.push_back(field);
    components.push_back({tensorflow::DT_INT64, {}});  // Parameter version.
    unroll_types = Types({}, components);
    batch_types = Types({tensorflow::DT_INT64, tensorflow::DT_INT32, tensorflow::DT_INT32}, fields.environment);
    batch_types = Types(batch_types, fields.state);
  }
  ~PoolResource() override { pool.Close("the pool was deleted"); }
  std::string DebugString() const override { return "ActorPool"; }

  const Fields fields;
  const UnrollLayout layout;
  std::vector<Field> components;  // Of an unroll. From first_row_component on they have unroll_length + 1 rows.
  size_t first_row_component;
  tensorflow::DataTypeVector batch_types, unroll_types;  // Of the outputs of ActorPoolNextBatch and -NextUnroll.
  ActorPool pool;

 private:
  Buffer AllocateComponent(int component, int unroll_length) {
    const Field& field = components[component];
    const bool rows = static_cast<size_t>(component) >= first_row_component;
    const tensorflow::TensorShape shape = rows ? Prepend(unroll_length + 1, field.shape) : field.shape;
    auto tensor = std::make_shared<tensorflow::Tensor>(field.type, shape);
    if (!tensor->IsInitialized()) return {};  // There was no memory.
    return {Data(*tensor), tensor};
  }
};

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_ACTOR_CC_ACTOR_POOL_RESOURCE_H_
