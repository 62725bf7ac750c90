#include "element_types.h"

#include "api/horoacc.h"

namespace horoacc {

int32_t NumberOf(tensorflow::DataType type) {
  switch (type) {
    case tensorflow::DT_BOOL:
      return HA_BOOL;
    case tensorflow::DT_UINT8:
      return HA_UINT8;
    case tensorflow::DT_INT8:
      return HA_INT8;
    case tensorflow::DT_UINT16:
    case tensorflow::DT_INT16:
      return HA_INT16;
    case tensorflow::DT_UINT32:
    case tensorflow::DT_INT32:
      return HA_INT32;
    case tensorflow::DT_UINT64:
    case tensorflow::DT_INT64:
      return HA_INT64;
    case tensorflow::DT_HALF:
      return HA_FLOAT16;
    case tensorflow::DT_BFLOAT16:
      return HA_BFLOAT16;
    case tensorflow::DT_FLOAT:
      return HA_FLOAT32;
    case tensorflow::DT_DOUBLE:
      return HA_FLOAT64;
    case tensorflow::DT_COMPLEX64:
      return HA_COMPLEX64;
    case tensorflow::DT_COMPLEX128:
      return HA_COMPLEX128;
    default:
      return -1;
  }
}

}  // namespace horoacc
