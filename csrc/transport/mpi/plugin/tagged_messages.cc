// Messages of the data links: pieces of memory that go with a tag of their own.
#include <algorithm>
#include <memory>

#include "transport/mpi/plugin/session.h"

namespace horoacc::mpi {
namespace {

/// An MPI type of all pieces, relative to MPI_BOTTOM. MPI counts in int.
int MakeType(const ha_piece* pieces, size_t count, MPI_Datatype* type) {
  constexpr size_t kBlock = 1 << 30;
  std::vector<int> lengths;
  std::vector<MPI_Aint> places;
  for (size_t index = 0; index < count; ++index) {
    auto* const bytes = static_cast<char*>(pieces[index].bytes);
    for (size_t at = 0; at < pieces[index].count; at += kBlock) {
      MPI_Aint place = 0;
      MPI_Get_address(bytes + at, &place);
      places.push_back(place);
      lengths.push_back(static_cast<int>(std::min(kBlock, pieces[index].count - at)));
    }
  }
  const int code = MPI_Type_create_hindexed(static_cast<int>(lengths.size()), lengths.data(),
                                            places.data(), MPI_BYTE, type);
  return code == MPI_SUCCESS ? MPI_Type_commit(type) : code;
}

/// Calls `start` with the pieces as MPI wants them.
template <typename Start>
int WithPieces(const ha_piece* pieces, size_t count, const Start& start) {
  if (count == 0) return start(nullptr, 0, MPI_BYTE);
  if (count == 1 && pieces[0].count <= kLongest) {
    return start(pieces[0].bytes, static_cast<int>(pieces[0].count), MPI_BYTE);
  }
  MPI_Datatype type = MPI_DATATYPE_NULL;
  int code = MakeType(pieces, count, &type);
  if (code == MPI_SUCCESS) code = start(MPI_BOTTOM, 1, type);
  // MPI keeps the type until the messages that use it are done.
  if (type != MPI_DATATYPE_NULL) MPI_Type_free(&type);
  return code;
}

/// Starts to receive a matched message.
int Place(Tagged& place, MPI_Message* handle, const MPI_Status& status) {
  MPI_Count length = 0;
  MPI_Get_elements_x(&status, MPI_BYTE, &length);
  place.matched = true;
  place.length = static_cast<size_t>(length);
  size_t room = 0;
  for (const ha_piece& piece : place.place) room += piece.count;
  if (place.length > room) {
    place.aside = std::make_unique_for_overwrite<char[]>(place.length);
    place.place.assign(1, {place.aside.get(), place.length});
  }
  return WithPieces(place.place.data(), place.place.size(),
                    [&](void* bytes, int elements, MPI_Datatype type) {
                      return MPI_Imrecv(bytes, elements, type, handle, &place.request);
                    });
}

/// Matches the messages of a peer and tag with their receives, oldest first.
int MatchPlaces(ha_mpi* mpi, int peer, int tag) {
  const auto lane = mpi->places.find({peer, tag});
  while (lane != mpi->places.end()) {
    int found = 0;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status;
    int code = MPI_Improbe(peer, tag, mpi->comm, &found, &handle, &status);
    if (code != MPI_SUCCESS || found == 0) return code;
    Tagged& place = *lane->second.front();
    lane->second.pop_front();
    const bool last = lane->second.empty();
    if (last) mpi->places.erase(lane);
    code = Place(place, &handle, status);
    if (code != MPI_SUCCESS || last) return code;
  }
  return MPI_SUCCESS;
}

}  // namespace

int TaggedSend(void* self, int peer, uint32_t tag, const ha_piece* pieces, size_t count,
               void** request, ha_transport_error* error) {
  auto* const mpi = static_cast<ha_mpi*>(self);
  auto started = std::make_unique<Tagged>();
  const int code = WithPieces(pieces, count, [&](void* bytes, int elements, MPI_Datatype type) {
    return MPI_Isend(bytes, elements, type, peer, static_cast<int>(tag), mpi->comm,
                     &started->request);
  });
  if (code != MPI_SUCCESS) return Explain(error, "MPI_Isend", code);
  *request = started.release();
  return 0;
}

int TaggedReceive(void* self, int peer, uint32_t tag, const ha_piece* pieces, size_t count,
                  void** request, ha_transport_error* /*error*/) {
  auto* const mpi = static_cast<ha_mpi*>(self);
  auto place = std::make_unique<Tagged>();
  place->peer = peer;
  place->tag = static_cast<int>(tag);
  place->matched = false;
  place->place.assign(pieces, pieces + count);
  mpi->places[{place->peer, place->tag}].push_back(place.get());
  *request = place.release();
  return 0;
}

int TaggedTest(void* self, void* request, int* done, size_t* bytes, ha_transport_error* error) {
  auto* const tested = static_cast<Tagged*>(request);
  *done = 0;
  if (!tested->matched) {
    const int code = MatchPlaces(static_cast<ha_mpi*>(self), tested->peer, tested->tag);
    if (code != MPI_SUCCESS) return Explain(error, "receiving over MPI", code);
    if (!tested->matched) return 0;
  }
  const int code = MPI_Test(&tested->request, done, MPI_STATUS_IGNORE);
  if (code != MPI_SUCCESS) return Explain(error, "a message over MPI", code);
  *bytes = tested->length;
  if (*done != 0) delete tested;
  return 0;
}

void TaggedCancel(void* self, void* request) {
  const std::unique_ptr<Tagged> place(static_cast<Tagged*>(request));
  auto* const mpi = static_cast<ha_mpi*>(self);
  if (!place->matched) {
    const auto lane = mpi->places.find({place->peer, place->tag});
    std::erase(lane->second, place.get());
    if (lane->second.empty()) mpi->places.erase(lane);
    return;
  }
  const double deadline = MPI_Wtime() + 1;
  for (int done = 0; done == 0 && MPI_Wtime() < deadline;) {
    if (MPI_Test(&place->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
  }
}

uint32_t MostTag(const ha_mpi* mpi) {
  int* most = nullptr;
  int found = 0;
  MPI_Comm_get_attr(mpi->comm, MPI_TAG_UB, static_cast<void*>(&most), &found);
  return found != 0 ? static_cast<uint32_t>(*most) : 32767;
}

}  // namespace horoacc::mpi
