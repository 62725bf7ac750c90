#include "negotiate/wire.h"

namespace horoacc {
namespace {

// Of a request.
constexpr uint8_t kOnGpu = 1;
constexpr uint8_t kTuned = 2;  ///< a way follows

}  // namespace

void WireWriter::Put(std::string_view text) {
  Put(static_cast<uint32_t>(text.size()));
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  bytes_.insert(bytes_.end(), bytes, bytes + text.size());
}

void WireWriter::Put(const Request& request) {
  Put(static_cast<uint8_t>(request.collective));
  Put(static_cast<uint8_t>(request.op));
  Put(request.prescale);
  Put(request.postscale);
  Put(request.root);
  const bool tuned = request.way != Way();
  Put(static_cast<uint8_t>((request.on_gpu ? kOnGpu : 0) | (tuned ? kTuned : 0)));
  Put(static_cast<uint32_t>(request.tensors.size()));
  for (const TensorMeta& tensor : request.tensors) {
    Put(static_cast<uint8_t>(tensor.type));
    Put(static_cast<uint32_t>(tensor.shape.size()));
    for (const int64_t dim : tensor.shape) Put(dim);
  }
  horoacc::Put(*this, request.splits);
  horoacc::Put(*this, request.receives);
  Put(std::string_view(request.local_error));
  if (!tuned) return;
  Put(request.way.algorithm);
  Put(request.way.window_bytes);
}

bool WireReader::Take(size_t bytes) {
  if (!ok_ || bytes > bytes_.size() - at_) {
    ok_ = false;
    return false;
  }
  at_ += bytes;
  return true;
}

uint32_t WireReader::GetCount(size_t item_bytes) {
  const auto count = Get<uint32_t>();
  if (count > (bytes_.size() - at_) / item_bytes) ok_ = false;
  return ok_ ? count : 0;
}

std::string WireReader::GetText() {
  const uint32_t length = GetCount(1);
  if (!Take(length)) return "";
  return {reinterpret_cast<const char*>(bytes_.data() + at_ - length), length};
}

std::vector<std::byte> WireReader::GetBlock() {
  const uint32_t length = GetCount(1);
  if (!Take(length)) return {};
  const auto block = bytes_.subspan(at_ - length, length);
  return {block.begin(), block.end()};
}

Request WireReader::GetRequest() {
  Request request;
  const auto collective = Get<uint8_t>();
  const auto op = Get<uint8_t>();
  if (collective >= kCollectiveCount || op >= kReduceOpCount) ok_ = false;
  request.collective = static_cast<Collective>(ok_ ? collective : 0);
  request.op = static_cast<ReduceOp>(ok_ ? op : 0);
  request.prescale = Get<double>();
  request.postscale = Get<double>();
  request.root = Get<int32_t>();
  const auto flags = Get<uint8_t>();
  if ((flags & ~(kOnGpu | kTuned)) != 0) ok_ = false;
  request.on_gpu = (flags & kOnGpu) != 0;
  const uint32_t tensors = GetCount(5);
  for (uint32_t t = 0; t < tensors && ok_; ++t) {
    TensorMeta tensor;
    const auto type = Get<uint8_t>();
    if (type >= kDTypeCount) ok_ = false;
    tensor.type = static_cast<DType>(ok_ ? type : 0);
    const uint32_t dims = GetCount(sizeof(int64_t));
    if (dims > static_cast<uint32_t>(kMaxDims)) ok_ = false;
    for (uint32_t dim = 0; dim < dims && ok_; ++dim) tensor.shape.push_back(Get<int64_t>());
    request.tensors.push_back(tensor);
  }
  request.splits = GetList<int64_t>(*this);
  request.receives = GetList<int64_t>(*this);
  request.local_error = GetText();
  if ((flags & kTuned) == 0) return request;
  request.way.algorithm = Get<uint32_t>();
  request.way.window_bytes = Get<uint64_t>();
  if (request.way == Way() || !IsPossible(request.way)) ok_ = false;
  return request;
}

void Put(WireWriter& writer, const Error& error) {
  writer.Put(static_cast<uint8_t>(error.kind));
  writer.Put(static_cast<int32_t>(error.culprit));
  writer.Put(std::string_view(error.message));
}

Error GetError(WireReader& reader) {
  const auto kind = reader.Get<uint8_t>();
  const auto culprit = reader.Get<int32_t>();
  if (!IsErrorKind(kind)) reader.Fail();
  std::string text = reader.GetText();
  return MakeError(static_cast<ErrorKind>(reader.ok() ? kind : 0), std::move(text), culprit);
}

void Put(WireWriter& writer, const Decision& decision) {
  writer.Put(static_cast<uint8_t>(decision.kind));
  writer.Put(
      static_cast<uint8_t>(static_cast<int>(decision.path) << 1 | (decision.partial ? 1 : 0)));
  Put(writer, decision.error);
  writer.Put(static_cast<int32_t>(decision.last_joined));
  writer.Put(decision.unnamed);
}

Decision GetDecision(WireReader& reader) {
  Decision decision;
  const auto kind = reader.Get<uint8_t>();
  const auto flags = reader.Get<uint8_t>();
  if (kind < 1 || kind > 3 || flags >> 1 >= kPathCount) reader.Fail();
  decision.kind = static_cast<Decision::Kind>(kind);
  decision.path = static_cast<Path>(flags >> 1);
  decision.partial = (flags & 1) != 0;
  decision.error = GetError(reader);
  decision.last_joined = reader.Get<int32_t>();
  decision.unnamed = reader.Get<uint64_t>();
  return decision;
}

}  // namespace horoacc
