// The fields of a row, as kernels know them: their types and shapes.
#ifndef SCALABLE_AGENTS_OPS_CC_FIELD_H_
#define SCALABLE_AGENTS_OPS_CC_FIELD_H_

#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace scalable_agents {

// One field of a row.
struct Field {
  tensorflow::DataType type;
  tensorflow::TensorShape shape;
  int64_t bytes() const { return shape.num_elements() * tensorflow::DataTypeSize(type); }
};

inline tensorflow::TensorShape Prepend(int64_t size, tensorflow::TensorShape shape) {
  shape.InsertDim(0, size);
  return shape;
}

inline char* Data(const tensorflow::Tensor& tensor) { return static_cast<char*>(tensor.data()); }

// The bytes along the last axis of a field.
inline int64_t LastAxisBytes(const Field& field) {
  const int dims = field.shape.dims();
  return (dims == 0 ? 1 : field.shape.dim_size(dims - 1)) * tensorflow::DataTypeSize(field.type);
}

// Reads the attributes NAME_types and NAME_shapes of an op.
inline absl::Status GetFields(tensorflow::OpKernelConstruction* context, const std::string& name,
                              std::vector<Field>* fields) {
  std::vector<tensorflow::DataType> types;
  std::vector<tensorflow::TensorShape> shapes;
  TF_RETURN_IF_ERROR(context->GetAttr(name + "_types", &types));
  TF_RETURN_IF_ERROR(context->GetAttr(name + "_shapes", &shapes));
  if (types.size() != shapes.size()) {
    return tensorflow::errors::InvalidArgument(name, ": want as many types as shapes");
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (tensorflow::DataTypeSize(types[i]) == 0) {
      return tensorflow::errors::InvalidArgument(name, ": rows cannot have this type");
    }
    fields->push_back({types[i], shapes[i]});
  }
  return absl::OkStatus();
}

// The types of some fields, after `first`.
inline tensorflow::DataTypeVector Types(tensorflow::DataTypeVector first, const std::vector<Field>& fields) {
  for (const Field& field : fields) first.push_back(field.type);
  return first;
}

// Reads the list of inputs `name`. Each must have the type of its field, and the shape `sizes` followed by the field's
// shape. `part` is the word for one input in error messages.
inline absl::Status GetInputs(tensorflow::OpKernelContext* context, const char* name, const char* part,
                              const std::vector<Field>& fields, const tensorflow::TensorShape& sizes,
                              tensorflow::OpInputList* inputs) {
  using tensorflow::DataTypeString;
  using tensorflow::errors::InvalidArgument;
  TF_RETURN_IF_ERROR(context->input_list(name, inputs));
  if (inputs->size() != static_cast<int>(fields.size())) {
    return InvalidArgument(name, ": want ", fields.size(), ", got ", inputs->size());
  }
  for (size_t i = 0; i < fields.size(); ++i) {
    tensorflow::TensorShape want = sizes;
    want.AppendShape(fields[i].shape);
    const tensorflow::Tensor& input = (*inputs)[i];
    if (input.shape() != want || input.dtype() != fields[i].type) {
      return InvalidArgument(name, ", ", part, " ", i, ": want ", DataTypeString(fields[i].type), " ",
                             want.DebugString(), ", got ", DataTypeString(input.dtype()), " ",
                             input.shape().DebugString());
    }
  }
  return absl::OkStatus();
}

}  // namespace scalable_agents

#endif  // SCALABLE_AGENTS_OPS_CC_FIELD_H_
