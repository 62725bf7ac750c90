// The wire form: what is written is read back, and nothing that a peer sends does more than fail.
#include "negotiate/wire.h"

#include <bit>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/check.h"
#include "support/seeds.h"
#include "support/tap.h"

namespace horoacc::testing {
namespace {

Bytes BytesOf(const WireWriter& writer) { return {writer.bytes().begin(), writer.bytes().end()}; }

Request RandomRequest(std::mt19937_64& random) {
  const auto draw = [&](uint64_t most) { return static_cast<int64_t>(random() % (most + 1)); };
  Request request;
  request.collective = static_cast<Collective>(draw(kCollectiveCount - 1));
  request.op = static_cast<ReduceOp>(draw(static_cast<uint64_t>(ReduceOp::kProduct)));
  request.prescale = std::bit_cast<double>(random() & 0xbfffffffffffffff);
  request.postscale = draw(1) ? 1.0 : -0.25;
  request.root = static_cast<int32_t>(random());
  request.on_gpu = draw(1) == 1;
  if (draw(1)) request.way = {static_cast<uint32_t>(draw(8)), static_cast<uint64_t>(draw(9999))};
  request.tensors.resize(draw(4));
  for (TensorMeta& tensor : request.tensors) {
    tensor.type = static_cast<DType>(draw(kDTypeCount - 1));
    const int64_t dims = draw(kMaxDims);
    for (int64_t dim = 0; dim < dims; ++dim) {
      tensor.shape.push_back(static_cast<int64_t>(random() >> draw(63)));
    }
  }
  request.splits.resize(draw(5));
  for (int64_t& part : request.splits) part = static_cast<int64_t>(random());
  request.receives.resize(draw(5));
  for (int64_t& part : request.receives) part = static_cast<int64_t>(random());
  for (int64_t k = draw(20); k > 0; --k) request.local_error.push_back(static_cast<char>(random()));
  return request;
}

void CheckSame(const Request& a, const Request& b) {
  CHECK(a.collective == b.collective);
  CHECK(a.op == b.op);
  CHECK_EQ(std::bit_cast<uint64_t>(a.prescale), std::bit_cast<uint64_t>(b.prescale));
  CHECK_EQ(std::bit_cast<uint64_t>(a.postscale), std::bit_cast<uint64_t>(b.postscale));
  CHECK_EQ(a.root, b.root);
  CHECK_EQ(a.on_gpu, b.on_gpu);
  CHECK(a.way == b.way);
  CHECK(a.tensors == b.tensors);
  CHECK(a.splits == b.splits);
  CHECK(a.receives == b.receives);
  CHECK_EQ(a.local_error, b.local_error);
}

TEST(fields_come_back) {
  WireWriter writer;
  writer.Put(uint8_t{255});
  writer.Put(int32_t{-1});
  writer.Put(uint64_t{1} << 63);
  writer.Put(-0.0);
  writer.Put(std::string_view("a\0b", 3));
  writer.Put(std::string_view());
  WireReader reader(writer.bytes());
  CHECK_EQ(reader.Get<uint8_t>(), 255);
  CHECK_EQ(reader.Get<int32_t>(), -1);
  CHECK_EQ(reader.Get<uint64_t>(), uint64_t{1} << 63);
  CHECK_EQ(std::bit_cast<uint64_t>(reader.Get<double>()), uint64_t{1} << 63);
  CHECK_EQ(reader.GetText(), std::string("a\0b", 3));
  CHECK_EQ(reader.GetText(), "");
  CHECK(reader.ok());
  CHECK(reader.at_end());
  CHECK_EQ(reader.Get<uint32_t>(), 0);
  CHECK(!reader.ok());
}

TEST(numbers_are_little_endian) {
  WireWriter writer;
  writer.Put(uint32_t{0x04030201});
  const Bytes bytes = BytesOf(writer);
  CHECK_EQ(bytes.size(), 4);
  for (int k = 0; k < 4; ++k) CHECK_EQ(static_cast<int>(bytes[k]), k + 1);
}

TEST(after_a_failure_everything_is_zero) {
  WireWriter writer;
  writer.Put(uint32_t{1000});  // a text of a thousand bytes that do not follow
  writer.Put(uint64_t{7});
  WireReader reader(writer.bytes());
  CHECK_EQ(reader.GetText(), "");
  CHECK(!reader.ok());
  CHECK_EQ(reader.Get<uint64_t>(), 0);
  CHECK_EQ(reader.GetCount(1), 0);
  CHECK(reader.GetRequest().tensors.empty());
  CHECK(!reader.ok());
}

TEST(requests_come_back) {
  std::mt19937_64 random(1);
  for (int k = 0; k < 3000; ++k) {
    check::ReseedHalfway(random, k, 3000);
    const Request request = RandomRequest(random);
    WireWriter writer;
    writer.Put(request);
    writer.Put(uint8_t{42});
    WireReader reader(writer.bytes());
    CheckSame(reader.GetRequest(), request);
    CHECK_EQ(reader.Get<uint8_t>(), 42);
    CHECK(reader.ok());
    CHECK(reader.at_end());
  }
}

TEST(every_truncation_is_refused) {
  std::mt19937_64 random(2);
  for (int k = 0; k < 100; ++k) {
    check::ReseedHalfway(random, k, 100);
    WireWriter writer;
    writer.Put(RandomRequest(random));
    const Bytes bytes = BytesOf(writer);
    for (size_t length = 0; length < bytes.size(); ++length) {
      // A copy of its own size, so that a sanitizer sees a read past the end.
      const Bytes cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(length));
      WireReader reader(cut);
      (void)reader.GetRequest();
      CHECK(!reader.ok());
    }
  }
}

TEST(counts_that_cannot_follow_are_refused_before_memory_is_taken) {
  for (const uint32_t count : {0xffffffffu, 0x7fffffffu, 0x20000000u, 4u}) {
    WireWriter writer;
    writer.Put(count);
    for (int k = 0; k < 3; ++k) writer.Put(int64_t{1});
    WireReader reader(writer.bytes());
    CHECK_EQ(reader.GetCount(sizeof(int64_t)), 0);
    CHECK(!reader.ok());
  }
  WireWriter writer;
  writer.Put(uint32_t{3});
  for (int k = 0; k < 3; ++k) writer.Put(int64_t{1});
  WireReader reader(writer.bytes());
  CHECK_EQ(reader.GetCount(sizeof(int64_t)), 3);
  CHECK(reader.ok());
}

TEST(unknown_enumerators_are_refused) {
  Request request;
  request.tensors = {{DType::kFloat32, {2}}};
  WireWriter writer;
  writer.Put(request);
  const Bytes good = BytesOf(writer);
  const size_t device_at = 1 + 1 + 8 + 8 + 4;
  const size_t type_at = device_at + 1 + 4;
  CHECK_EQ(static_cast<int>(good[type_at]), static_cast<int>(DType::kFloat32));
  for (const size_t at : {size_t{0}, size_t{1}, device_at, type_at}) {
    Bytes bad = good;
    bad[at] = std::byte{200};
    WireReader reader(bad);
    const Request read = reader.GetRequest();
    CHECK(!reader.ok());
    CHECK(static_cast<int>(read.collective) < kCollectiveCount);
    CHECK(static_cast<int>(read.op) < kReduceOpCount);
  }
}

/// Flips, drops, doubles or overwrites bytes.
void Damage(Bytes& bytes, std::mt19937_64& random) {
  for (uint64_t strokes = 1 + random() % 4; strokes > 0 && !bytes.empty(); --strokes) {
    const auto at = bytes.begin() + static_cast<ptrdiff_t>(random() % bytes.size());
    switch (random() % 5) {
      case 0:
        *at ^= std::byte{1} << (random() % 8);
        break;
      case 1:
        *at = static_cast<std::byte>(random());
        break;
      case 2:
        bytes.erase(
            at, bytes.begin() + (at - bytes.begin()) +
                    static_cast<ptrdiff_t>(std::min<uint64_t>(1 + random() % 8, bytes.end() - at)));
        break;
      case 3:
        bytes.insert(at, 1 + random() % 8, static_cast<std::byte>(random()));
        break;
      default:
        for (auto byte = at; byte != bytes.end() && byte != at + 4; ++byte) *byte = std::byte{255};
    }
  }
}

TEST(damaged_requests_do_no_harm) {
  std::mt19937_64 random(3);
  for (int k = 0; k < 50'000; ++k) {
    check::ReseedHalfway(random, k, 50'000);
    Bytes bytes;
    if (k % 2) {
      bytes.resize(random() % 200);
      for (std::byte& byte : bytes)
        byte = static_cast<std::byte>(random() % (k % 4 == 1 ? 256 : 4));
    } else {
      WireWriter writer;
      writer.Put(RandomRequest(random));
      bytes = BytesOf(writer);
      Damage(bytes, random);
    }
    WireReader reader(bytes);
    const Request request = reader.GetRequest();
    CHECK(static_cast<int>(request.collective) < kCollectiveCount);
    CHECK(static_cast<int>(request.op) < kReduceOpCount);
    for (const TensorMeta& tensor : request.tensors) {
      CHECK(static_cast<int>(tensor.type) < kDTypeCount);
      CHECK(tensor.shape.size() <= static_cast<size_t>(kMaxDims));
    }
  }
}

}  // namespace
}  // namespace horoacc::testing
