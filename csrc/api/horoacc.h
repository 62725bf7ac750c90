/* The C contract of the core. Every binding (Python, torch, TensorFlow) includes this and nothing
 * else of csrc/. No exception crosses it. Unless said otherwise a function may be called from any
 * thread, returns 0 on success, or the ha_error_kind and fills *error (which may be NULL). */
#ifndef HOROACC_API_H_
#define HOROACC_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HA_API __attribute__((visibility("default")))

typedef struct ha_engine ha_engine;
typedef uint64_t ha_handle;

typedef enum {
  HA_OK = 0,
  HA_MISMATCH = 1,
  HA_INVALID = 2,
  HA_PEER_LOST = 3,
  HA_TIMEOUT = 4,
  HA_ABORTED = 5,
  HA_CONFIG = 6,
  HA_SYSTEM = 7,
  HA_UNSUPPORTED = 8
} ha_error_kind;

typedef struct {
  int32_t kind;    /* ha_error_kind */
  int32_t culprit; /* rank that caused it, or -1 */
  /* Index of the failed collective within its process set, the same on all ranks; -1: not known, or
   * no collective. */
  int64_t collective;
  char message[4096];
  char host[256];   /* the culprit's; "" if it is not known */
  char tensor[512]; /* of the failed call; "" if no call failed */
  char hint[512];   /* advice for the user */
} ha_error;

typedef enum {
  HA_ALLREDUCE = 0,
  HA_ALLGATHER = 1,
  HA_BROADCAST = 2,
  HA_ALLTOALL = 3,
  HA_REDUCESCATTER = 4,
  HA_BARRIER = 5,
  HA_REDUCE = 6,
  HA_GATHER = 7,
  HA_SCATTER = 8,
  HA_MONITORED_BARRIER = 9, /* as HA_BARRIER, and HA_MISMATCH where others make an HA_BARRIER */
  HA_JOIN = 10
} ha_collective;

typedef enum {
  HA_BOOL = 0,
  HA_UINT8 = 1,
  HA_INT8 = 2,
  HA_INT16 = 3,
  HA_INT32 = 4,
  HA_INT64 = 5,
  HA_FLOAT16 = 6,
  HA_BFLOAT16 = 7,
  HA_FLOAT32 = 8,
  HA_FLOAT64 = 9,
  HA_COMPLEX64 = 10,
  HA_COMPLEX128 = 11
} ha_dtype;

/* Horovod's numbers. Adasum is for real floating-point types. */
typedef enum {
  HA_AVERAGE = 0,
  HA_SUM = 1,
  HA_ADASUM = 2,
  HA_MIN = 3,
  HA_MAX = 4,
  HA_PRODUCT = 5,
  HA_BIT_AND = 6, /* of integers and truth values */
  HA_BIT_OR = 7,
  HA_BIT_XOR = 8
} ha_op;

typedef struct {
  const char* key;
  const char* value;
} ha_setting;

/* This process's ranks in the job, and how to reach the other processes. */
typedef struct {
  int32_t rank, size;
  int32_t local_rank, local_size;
  int32_t cross_rank, cross_size;
  const char* bootstrap;  /* "tcp", "mpi" or "none" (size 1) */
  const char* rendezvous; /* "host:port" for tcp; rank 0 listens there */
  int32_t rendezvous_fd;  /* a listening socket that rank 0 inherited, or -1 */
  const char* secret;     /* the job's secret, hex */
  /* For bootstrap or control "mpi": */
  const char* mpi_plugin;   /* the MPI plug-in, or the folder of both */
  const char* mpi_launcher; /* "openmpi" or "mpich" if its launcher started this process */
  const char* mpi_library;  /* path or soname of the user's libmpi; NULL: choose */
  const char* mpi_prefix;   /* sys.prefix, for the libmpi of a wheel; NULL: none */
} ha_placement;

/* One tensor of a submission. */
typedef struct {
  const char* name; /* NULL: unnamed, matched by order of submission in its process set */
  const void* input;
  void* output;         /* NULL: the engine allocates (allgather, alltoall, reducescatter) */
  const int64_t* shape; /* dimensions of the input, at most 16; scatter: of the output */
  int32_t ndim;
  int32_t dtype; /* ha_dtype */
} ha_tensor;

/* The GPU whose memory has the tensors of a call. */
typedef struct {
  int32_t device; /* the GPU's number in this process */
  /* A CUDA stream (NULL: the default stream): once its present work has run, the inputs are ready
   * and the outputs may be written. */
  void* stream;
} ha_gpu;

typedef struct {
  int32_t collective;  /* ha_collective */
  int32_t process_set; /* 0: all ranks */
  int32_t op;          /* ha_op, for reductions */
  int32_t root;        /* broadcast, reduce, gather, scatter: global rank */
  double prescale, postscale;
  const int64_t* splits; /* alltoall: rows for every rank of the set; NULL: equal parts */
  int32_t nsplits;
  /* alltoall with an output: its rows for each rank of the set (nsplits). HA_MISMATCH on all ranks
   * if a rank sends another number. NULL: the output has room for all. */
  const int64_t* receive_splits;
  /* An error of this rank's call that the binding has found; NULL: none. ha_submit returns it as
   * HA_INVALID, and the other ranks' calls end with it. */
  const char* validation_error;
  /* The call is given up after so many seconds: see ha_give_up. 0: never. */
  double limit_seconds;
  /* All tensors of the call lie in this GPU's memory; NULL: in the host's. Alike on all ranks. */
  const ha_gpu* gpu;
  /* Not 0: a group, with tensors "<name>_<i>of<n>". HA_MISMATCH if the ranks' groups of one name
   * differ in their number of tensors. */
  int32_t grouped;
  /* Not 0: the allreduce has a name and comes again and again, as that of a graph's op does. On
   * several hosts no bucket fuses it with others then if it may begin without a message to other
   * hosts, and so it does once it has come a few times with the same request. Alike on all ranks.
   */
  int32_t recurring;
} ha_call;

/* Runs once, after the handle is complete: on the engine's completion thread, or on a thread in
 * ha_wait for the handle. */
typedef void (*ha_done)(void* context, ha_handle handle);

/* A result in memory that the engine allocated, or the shape of one in the caller's memory. */
typedef struct {
  void* data;
  size_t bytes;
  int64_t shape[16];
  int32_t ndim;
  int32_t dtype;                  /* ha_dtype */
  const int64_t* received_splits; /* alltoall, allgather (of the last member); rows by rank of the
                                   * set; valid until the handle is released */
  int32_t nsplits;
  /* Not 0: the engine allocated it on the call's GPU, where ha_copy_result copies it from; `data`
   * is NULL. A result of GPU tensors may still be in the host's memory: if GPUs did not move it. */
  int32_t on_gpu;
} ha_output;

/* Called now and then, on the calling thread, by a function that waits for other ranks. Nonzero
 * ends the wait: for a process set with HA_TIMEOUT, and the call goes on in the background, in step
 * with the other ranks; in ha_engine_create with HA_ABORTED, and the job does not start. */
typedef int (*ha_interrupted)(void* context);

/* Waits until all ranks have called it; `interrupted` may be NULL. */
HA_API int ha_engine_create(const ha_setting* settings, size_t count, const ha_placement* placement,
                            ha_engine** engine, ha_interrupted interrupted, void* context,
                            ha_error* error);
/* Tells the peers, ends calls in flight with HA_ABORTED, joins all threads. Idempotent. */
HA_API int ha_engine_shutdown(ha_engine* engine, ha_error* error);
/* The same without telling the peers, for a process that is about to fail: the peers notice its
 * death (HA_PEER_LOST), so that none of them ends before it. */
HA_API int ha_engine_abandon(ha_engine* engine, ha_error* error);
/* Before the process ends normally: finalises MPI if an engine of this process initialised it and
 * the job was not aborted. MPI cannot be used afterwards. */
HA_API int ha_mpi_finalize(ha_engine* engine, ha_error* error);
/* MPI's thread level, 0 (MPI_THREAD_SINGLE) to 3 (MPI_THREAD_MULTIPLE); -1: no MPI in this job. */
HA_API int ha_mpi_thread_level(const ha_engine* engine);
/* The key of the MACs of pickled objects, and its length: 0 if data go nowhere unsealed, 32 if they
 * go between hosts over MPI, a transport plug-in or connections without tags. It is made of the
 * job's secret and of this start of its engines, and is the same on all ranks. */
HA_API size_t ha_object_key(const ha_engine* engine, char out[32]);
/* Shuts down if need be, and frees the engine and every handle. For an engine whose pointer only
 * the caller has. */
HA_API void ha_engine_destroy(ha_engine* engine);
/* Takes a reference. 1: the engine stays until ha_engine_unref. 0: it is freed, and the pointer may
 * be passed only to ha_engine_ref, ha_arena_allocate (which returns NULL), ha_arena_free,
 * ha_arena_contains and ha_arena_over: arena blocks in use keep their bytes. */
HA_API int ha_engine_ref(ha_engine* engine);
/* Drops a reference. The creator has one, too, and calls this in place of ha_engine_destroy if
 * other code has the pointer. The last unref shuts down and frees all but the arena. */
HA_API void ha_engine_unref(ha_engine* engine);

HA_API void ha_engine_placement(const ha_engine* engine, int32_t out[6]);

/* `ranks` ascending and distinct; every rank of the job calls it, in the same order. The id is the
 * same on all ranks. Set 0 (all ranks) exists from the start. `interrupted` may be NULL. With
 * `own_part` on all ranks each rank names its own set, alike on all members: all these sets are
 * added, or removed, and the id is that of the rank's own set. */
HA_API int ha_process_set_add(ha_engine* engine, const int32_t* ranks, size_t count, int own_part,
                              int32_t* id, ha_interrupted interrupted, void* context,
                              ha_error* error);
HA_API int ha_process_set_remove(ha_engine* engine, int32_t id, int own_part,
                                 ha_interrupted interrupted, void* context, ha_error* error);
/* The sets of ha_process_set_add: writes at most `capacity` ids and returns their number. */
HA_API size_t ha_process_set_ids(const ha_engine* engine, int32_t* ids, size_t capacity);
/* A process set that only its members know: `ranks` ascending and distinct, with the caller's. One
 * member claims it and sends the id to the others by its own means; they join. None of these is a
 * collective. Leaving ends undecided calls of the group, on all its members. */
HA_API int ha_group_claim(ha_engine* engine, const int32_t* ranks, size_t count, int32_t* id,
                          ha_error* error);
HA_API int ha_group_join(ha_engine* engine, int32_t id, const int32_t* ranks, size_t count,
                         ha_error* error);
HA_API int ha_group_leave(ha_engine* engine, int32_t id, ha_error* error);

/* Writes at most `capacity` ranks; returns their number, or -1 for an unknown id. */
HA_API int32_t ha_process_set_ranks(const ha_engine* engine, int32_t id, int32_t* ranks,
                                    size_t capacity);

/* HA_JOIN takes no tensors: this rank has nothing more to reduce. Until all ranks of the set have
 * joined, allreduces of the others run with zeros in its place, their other collectives fail, and
 * it may submit nothing else. The handle is complete when all ranks have joined; its one result is
 * an int32, the last rank. If the wait for a join was interrupted, and nothing else was submitted
 * since, the next HA_JOIN completes at once with that join's result.
 *
 * Submits `count` tensors as one unit (a group if > 1) and returns at once. The input and output
 * memory must live until the handle is complete. */
HA_API int ha_submit(ha_engine* engine, const ha_call* call, const ha_tensor* tensors, size_t count,
                     ha_done done, void* context, ha_handle* handle, ha_error* error);
/* 1 complete, 0 not yet, -1 unknown handle. Does not wait for other ranks, but may drive the engine
 * for some milliseconds if there is work and no other thread drives it. */
HA_API int ha_poll(ha_engine* engine, ha_handle handle);
/* Blocks until the handle is complete and returns its outcome; the calling thread may drive the
 * engine meanwhile. HA_TIMEOUT after `seconds` (< 0: no limit); the handle stays valid. A signal
 * may end the wait early, which also reads HA_TIMEOUT. */
HA_API int ha_wait(ha_engine* engine, ha_handle handle, double seconds, ha_error* error);
/* For a complete call with tensors of a GPU: later work on `stream`, and on the stream of the
 * submission, finds the results. Does nothing for other calls. Does not wait. */
HA_API int ha_join_stream(ha_engine* engine, ha_handle handle, void* stream, ha_error* error);
/* Gives up a call after `seconds`: HA_TIMEOUT that names the missing ranks; or the outcome, if the
 * call is complete. The process set ends with it: calls in flight, and later ones, fail on all its
 * ranks. The handle stays valid, and the call's memory in use until it is complete. */
HA_API int ha_give_up(ha_engine* engine, ha_handle handle, double seconds, ha_error* error);
/* Tensors that are reduced round after round with the same `call` (a model's gradients). In a round
 * each is submitted at most once, then all that are in flight are waited for, and the round is
 * ended. After some unchanged rounds the ranks agree on a plan: then the tensors of a bucket are
 * one call, which the last of them submits. What a rank does otherwise than before ends the plan,
 * on all ranks, and changes no result. Destroying it leaves in flight what is. The engine must stay
 * until then. NULL: out of memory. */
typedef struct ha_locked_plan ha_locked_plan;
HA_API ha_locked_plan* ha_locked_plan_create(ha_engine* engine, const ha_call* call,
                                             const char* const* names, size_t count);
HA_API void ha_locked_plan_destroy(ha_locked_plan* plan);
/* The tensor's name is that of the plan. After HA_MISMATCH, HA_INVALID and HA_UNSUPPORTED the other
 * ranks have an error as well: the tensor counts as in flight, and ha_locked_plan_wait gives the
 * error. */
HA_API int ha_locked_plan_submit(ha_locked_plan* plan, size_t index, const ha_tensor* tensor,
                                 ha_error* error);
HA_API int ha_locked_plan_in_flight(const ha_locked_plan* plan, size_t index);
/* As ha_wait. HA_OK if the tensor is not in flight; HA_TIMEOUT may mean that it still is. */
HA_API int ha_locked_plan_wait(ha_locked_plan* plan, size_t index, double seconds, ha_error* error);
HA_API void ha_locked_plan_end_round(ha_locked_plan* plan);
/* Point-to-point, matched by (process set, sender, tag) in the order of the calls. `to` and `from`
 * are global ranks. Bytes must be equal on both sides, else HA_MISMATCH on both. A send of at most
 * 64 KiB may complete before it is received; a longer one completes when it has been. The memory
 * must live until the handle is complete. */
#define HA_ANY_SOURCE (-1)
HA_API int ha_send(ha_engine* engine, int32_t process_set, int32_t to, int32_t tag,
                   const void* data, size_t bytes, double limit_seconds, ha_handle* handle,
                   ha_error* error);
HA_API int ha_receive(ha_engine* engine, int32_t process_set, int32_t from, int32_t tag, void* data,
                      size_t bytes, double limit_seconds, ha_handle* handle, ha_error* error);
/* The global rank that sent the message of a complete receive; -1 for other handles. */
HA_API int32_t ha_source(ha_engine* engine, ha_handle handle);
/* The outcome of member `index` of a complete handle. */
HA_API int ha_result(ha_engine* engine, ha_handle handle, size_t index, ha_output* output,
                     ha_error* error);
/* Takes the engine-allocated memory of a member out of the handle; free it with ha_free. */
HA_API void* ha_take(ha_engine* engine, ha_handle handle, size_t index);
HA_API void ha_free(void* memory);
/* Enqueues the copy of `bytes` of a result that is `on_gpu`, from its byte `first` on, to that
 * GPU's memory, on a stream that ha_join_stream was called with. The handle may be released at
 * once. */
HA_API int ha_copy_result(ha_engine* engine, ha_handle handle, size_t index, size_t first,
                          size_t bytes, void* to, void* stream, ha_error* error);
/* Frees a handle and its name. A call in flight goes on, and uses its memory until it is complete,
 * which can no longer be seen. */
HA_API void ha_release(ha_engine* engine, ha_handle handle);

/* The arena: memory that the ranks of the host reduce in place. NULL if it is exhausted. */
HA_API void* ha_arena_allocate(ha_engine* engine, size_t bytes);
HA_API void ha_arena_free(ha_engine* engine, void* memory);
HA_API int ha_arena_contains(const ha_engine* engine, const void* memory);
/* 1: the engine was shut down and all blocks are free: the arena is empty for good. */
HA_API int ha_arena_over(const ha_engine* engine);

/* Call these before a fork, and after it in the parent and in the child. The child gets a private
 * copy of the live arena blocks and may call nothing else of this header. */
HA_API void ha_before_fork(ha_engine* engine);
HA_API void ha_after_fork_in_parent(ha_engine* engine);
HA_API void ha_after_fork_in_child(ha_engine* engine);

/* For an interpreter's binding: a stall's warning on other ranks shows the interpreter's stacks.
 * `talk` is one end of a pair of packet sockets: the binding answers each packet at the other end
 * with the packet and the stacks of all threads, in the form of CPython's faulthandler. Without an
 * answer the engine raises `signal`, whose handler appends the stacks to `fd` whatever the
 * interpreter does. `requests` (or NULL) counts the user's requests for a flight record (setting
 * flight_dir). The files stay open until this is called with -1, or the engine is shut down. */
HA_API void ha_stacks(ha_engine* engine, int talk, int signal, int fd, uint32_t (*requests)(void));

/* From now on whoever connects to `listener`, a listening Unix socket, and is of the same user may
 * ask how this rank is (runtime/trace/reading_server.h). The engine owns the socket, also if this
 * fails, until it is shut down. */
HA_API int ha_serve_readings(ha_engine* engine, int listener, ha_error* error);

/* Settings that change while the job runs. All but `last_arriver_bytes` are of tensors that are
 * reduced round after round. */
typedef struct {
  uint64_t fusion_threshold; /* at most the setting */
  uint64_t last_arriver_bytes;
  uint64_t window_bytes; /* between hosts; 0: as the settings say */
  uint32_t algorithm;    /* between hosts: 1 + its place in ha_algorithms; 0: as the settings say */
} ha_tuned_values;

/* All ranks call it with the same values between two steps. Those who look see the rest: the
 * number of `trials` so far, how many of these were `kept`, and in `story`, which is JSON, what was
 * tried and why the values hold. */
HA_API int ha_tune(ha_engine* engine, const ha_tuned_values* values, uint64_t trials, uint64_t kept,
                   const char* story, ha_error* error);
/* The values as they are now. */
HA_API void ha_tuned(const ha_engine* engine, ha_tuned_values* values);

HA_API int ha_timeline_start(ha_engine* engine, const char* path, int mark_cycles, ha_error* error);
HA_API int ha_timeline_stop(ha_engine* engine, ha_error* error);

/* Counters as "name=value" lines; returns the length needed, like snprintf. */
HA_API size_t ha_counters(const ha_engine* engine, char* text, size_t capacity);

/* --- collective schedules, without an engine (csrc/schedule) --- */

/* Links of a simulated cluster: seconds, and bytes a second. */
typedef struct {
  double local_latency, local_bandwidth, memory_bandwidth;
  double network_latency, stream_bandwidth, nic_bandwidth;
  double reduce_bandwidth, overhead, slice_bytes;
  uint32_t nics;
} ha_fabric;

/* Which algorithm on which hosts. */
typedef struct {
  const char* algorithm;
  const uint32_t* ranks_per_host;
  size_t hosts;
  uint32_t root;  /* of broadcast and reduce */
  uint32_t trees; /* of "trees" */
} ha_plan;

typedef struct {
  double seconds;
  uint32_t windows; /* the best number of windows of the vector */
  uint64_t events;  /* simulated */
} ha_prediction;

typedef struct {
  uint64_t steps, links;
  uint32_t rounds;           /* the longest chain of dependent messages */
  double most_sent;          /* by a rank, in parts of the vector */
  double host_sends;         /* the most that leaves a host, in parts of the vector */
  uint64_t network_messages; /* between hosts */
} ha_proof;

/* The names of the algorithms, one a line; returns the length needed. */
HA_API size_t ha_algorithms(char* text, size_t capacity);
HA_API void ha_fabric_defaults(ha_fabric* fabric);
HA_API int ha_simulate(const ha_plan* plan, const ha_fabric* fabric, double bytes,
                       ha_prediction* prediction, ha_error* error);
/* At most 64 ranks. HA_INVALID for a wrong schedule or plan. */
HA_API int ha_prove(const ha_plan* plan, ha_proof* proof, ha_error* error);

/* Whether kernels run on a GPU of this machine: loads the CUDA plug-in and opens the GPU.
 * HA_UNSUPPORTED names the missing part. */
HA_API int ha_check_cuda(const char* plugin, int device, ha_error* error);
/* Loads NCCL and writes its version, as "2.27.7", to `version`, of at least 16 bytes.
 * HA_UNSUPPORTED names the missing part. */
HA_API int ha_check_nccl(const char* library, char* version, ha_error* error);
/* Loads the libcrypto that seals what goes between hosts ("" finds the system's) and writes its
 * version, as "OpenSSL 3.0.15 3 Sep 2024", to `version`, of at least 64 bytes. HA_CONFIG says what
 * is missing. */
HA_API int ha_check_libcrypto(const char* library, char* version, ha_error* error);

HA_API const char* ha_version(void);
/* The defaults of the core's settings, as "key=value" lines; returns the length needed. */
HA_API size_t ha_setting_defaults(char* text, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif /* HOROACC_API_H_ */
