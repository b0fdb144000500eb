// What the ops of both replays share: the resource, attributes and inputs with rows, outputs, and files.
#ifndef SCALABLE_AGENTS_REPLAY_CC_REPLAY_OP_HELPERS_H_
#define SCALABLE_AGENTS_REPLAY_CC_REPLAY_OP_HELPERS_H_

#include <string>
#include <utility>
#include <vector>

#include "ops/cc/field.h"
#include "ops/cc/op_helpers.h"
#include "replay/cc/row_store.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/util/work_sharder.h"

namespace scalable_agents {

// The components of rows, as an op that makes a replay gets them.
struct RowAttributes {
  std::vector<Field> fields;  // As they are stored.
  std::vector<RowComponent> components;
  int done = 0;          // Index of the component that says where an episode starts.
  std::string contents;  // A text that describes what the replay stores.
};

// Reads the attributes row_types, row_shapes, stacks, done_component and contents.
inline absl::Status GetRowAttributes(tensorflow::OpKernelConstruction* context, RowAttributes* rows) {
  using tensorflow::errors::InvalidArgument;
  std::vector<int> stacks;
  TF_RETURN_IF_ERROR(GetFields(context, "row", &rows->fields));
  TF_RETURN_IF_ERROR(context->GetAttr("stacks", &stacks));
  TF_RETURN_IF_ERROR(context->GetAttr("done_component", &rows->done));
  TF_RETURN_IF_ERROR(context->GetAttr("contents", &rows->contents));
  const std::vector<Field>& fields = rows->fields;
  if (stacks.size() != fields.size()) return InvalidArgument("stacks: want one for each row component");
  for (size_t i = 0; i < fields.size(); ++i) {
    if (stacks[i] < 1 || (stacks[i] > 1 && fields[i].shape.dims() == 0)) {
      return InvalidArgument("stacks, component ", i, ": want 1 or more, and at least one axis to stack, got ",
                             stacks[i]);
    }
    rows->components.push_back({fields[i].bytes(), stacks[i], LastAxisBytes(fields[i])});
  }
  if (rows->done < 0 || rows->done >= static_cast<int>(fields.size()) ||
      fields[rows->done].type != tensorflow::DT_BOOL || fields[rows->done].bytes() != 1) {
    return InvalidArgument("done_component: want the index of a component of bool []");
  }
  return absl::OkStatus();
}

// A replay, and the types and shapes of what it stores.
template <typename Replay>
class ReplayResource : public tensorflow::ResourceBase {
 public:
  template <typename Options>
  ReplayResource(const Options& options, std::vector<Field> rows, std::vector<Field> states = {})
      : rows(std::move(rows)), states(std::move(states)), replay(options) {}
  std::string DebugString() const override { return "Replay"; }

  const std::vector<Field> rows, states;  // Of a stack of frames, the newest frame.
  Replay replay;
};

// The rows of unroll number `unroll` in a tensor [rows, num_unrolls, ...], which has `bytes` bytes per row and unroll.
inline StridedRows RowsOf(const tensorflow::Tensor& tensor, int64_t bytes, int64_t unroll, int64_t num_unrolls) {
  return {Data(tensor) + unroll * bytes, num_unrolls * bytes};
}

// The rows of an unroll in each component.
inline std::vector<StridedRows> RowsOf(const tensorflow::OpInputList& inputs, const std::vector<Field>& fields,
                                       int64_t unroll, int64_t num_unrolls) {
  std::vector<StridedRows> rows;
  for (size_t i = 0; i < fields.size(); ++i) rows.push_back(RowsOf(inputs[i], fields[i].bytes(), unroll, num_unrolls));
  return rows;
}

// Allocates an output of a list, which must have the replay's type.
inline absl::Status Allocate(tensorflow::DataType type, const tensorflow::TensorShape& shape, int index,
                             tensorflow::OpOutputList* outputs, tensorflow::Tensor** tensor) {
  const tensorflow::DataType got = outputs->expected_output_dtype(index);
  if (got != type) {
    return tensorflow::errors::InvalidArgument("output ", index, ": want ", tensorflow::DataTypeString(type),
                                               " as in the replay, got ", tensorflow::DataTypeString(got));
  }
  return outputs->allocate(index, shape, tensor);
}

// The outputs `rows` and `earlier` of an op: a tensor [num_rows, num_items, ...] for each component, and the frames
// before row 0, [num_items, k-1, ...], for each stack.
class RowOutputs {
 public:
  absl::Status Allocate(tensorflow::OpKernelContext* context, const std::vector<Field>& fields,
                        const std::vector<RowComponent>& components, int64_t num_rows, int64_t num_items) {
    tensorflow::OpOutputList outputs;
    TF_RETURN_IF_ERROR(context->output_list("rows", &outputs));
    if (outputs.size() != static_cast<int>(fields.size())) {
      return tensorflow::errors::InvalidArgument("row_types: want ", fields.size(), ", got ", outputs.size());
    }
    num_items_ = num_items;
    tensors_.resize(fields.size());
    for (size_t i = 0; i < fields.size(); ++i) {
      TF_RETURN_IF_ERROR(scalable_agents::Allocate(
          fields[i].type, Prepend(num_rows, Prepend(num_items, fields[i].shape)), i, &outputs, &tensors_[i]));
      row_bytes_.push_back(fields[i].bytes());
      bytes_per_item_ += num_rows * row_bytes_.back();
      if (components[i].stack > 1) stacks_.push_back(i);
    }
    TF_RETURN_IF_ERROR(context->output_list("earlier", &outputs));
    if (outputs.size() != static_cast<int>(stacks_.size())) {
      return tensorflow::errors::InvalidArgument("earlier_types: want ", stacks_.size(), ", got ", outputs.size());
    }
    earlier_.resize(stacks_.size());
    for (size_t j = 0; j < stacks_.size(); ++j) {
      const Field& field = fields[stacks_[j]];
      TF_RETURN_IF_ERROR(scalable_agents::Allocate(
          field.type, Prepend(num_items, Prepend(components[stacks_[j]].stack - 1, field.shape)), j, &outputs,
          &earlier_[j]));
    }
    return absl::OkStatus();
  }

  // Fills in an item: read(component, to, to_stride) copies its rows of a component, and read_earlier(component, to)
  // the frames before row 0.
  template <typename Read, typename ReadEarlier>
  void Fill(int64_t item, const Read& read, const ReadEarlier& read_earlier) const {
    for (size_t j = 0; j < stacks_.size(); ++j) {
      read_earlier(stacks_[j], Data(*earlier_[j]) + item * (earlier_[j]->TotalBytes() / num_items_));
    }
    for (size_t i = 0; i < tensors_.size(); ++i) {
      read(i, Data(*tensors_[i]) + item * row_bytes_[i], num_items_ * row_bytes_[i]);
    }
  }

  // Calls fill(begin, end) for ranges of all items, on several threads.
  template <typename FillRange>
  void ForAll(tensorflow::OpKernelContext* context, const FillRange& fill) const {
    const auto& threads = *context->device()->tensorflow_cpu_worker_threads();
    tensorflow::Shard(threads.num_threads, threads.workers, num_items_, bytes_per_item_, fill);
  }

 private:
  std::vector<tensorflow::Tensor*> tensors_, earlier_;
  std::vector<int> stacks_;         // The components that `earlier` has.
  std::vector<int64_t> row_bytes_;  // Of a row of an item.
  int64_t num_items_ = 0, bytes_per_item_ = 0;
};

template <typename Resource>
absl::Status Save(tensorflow::OpKernelContext* context, Resource* resource) {
  tensorflow::tstring path;
  TF_RETURN_IF_ERROR(GetScalar(context, "path", &path));
  return ToTensorFlow(resource->replay.Save(path));
}

template <typename Resource>
absl::Status Restore(tensorflow::OpKernelContext* context, Resource* resource) {
  tensorflow::tstring path;
  TF_RETURN_IF_ERROR(GetScalar(context, "path", &path));
  return ToTensorFlow(resource->replay.Restore(path));
}

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_REPLAY_CC_REPLAY_OP_HELPERS_H_
