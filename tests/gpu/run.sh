#!/usr/bin/env bash
# Builds, checks and times HoroACC's code for GPUs, on a machine with a GPU, CUDA 13 (nvcc), Python
# 3.10 or newer with its headers, torch 2.10 or newer, NumPy and cloudpickle. Needs neither network,
# CMake, MPI nor an installed HoroACC.
#
#   tests/gpu/run.sh [--resume | --build] [folder]
#
# It builds in the folder (build/gpu), and writes there every part's output, verdicts.txt (PASS, FAIL
# or NOT CHECKED), bounds.txt (MET, NOT MET or NOT MEASURED) and table.md (both, for docs/gpu.md); to
# $OUT, if that is set, the same in four files (parts.txt has all output). What it runs first is the
# probe of what the modes assume of CUDA. A part that fails, or takes too long, does not end the others.
# After SECONDS_IN_ALL (540) no part begins: the remaining ones are NOT CHECKED, and --resume runs them,
# and those that failed, in another run, with the objects that are there. `ARCH=sm_90 tests/gpu/run.sh
# --build` makes those without a GPU, on any machine with nvcc, to be carried to one. A run without
# either option begins anew, and deletes them.
#
# TensorFlow is checked where there is one that uses the GPU, for PYTHON or for TENSORFLOW_PYTHON
# (another interpreter of the same version); NCCL if it can be loaded: NCCL=path, else torch's.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
option=
case ${1:-} in --*) option=$1 && shift ;; esac
out=$(mkdir -p "${1:-build/gpu}" && cd "${1:-build/gpu}" && pwd)
python=${PYTHON:-$(command -v python3 || command -v python)}
tensorflow_python=${TENSORFLOW_PYTHON:-$python}
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
library=$out/libhoroacc_cuda.so
core=$out/core
budget=${SECONDS_IN_ALL:-540}
verdicts=$out/verdicts.txt
[ "$option" = --resume ] || rm -rf "$out"/*.txt "$out"/*.cu.o "$core"
mkdir -p "$core"
touch "$out/passed.txt"
: > "$verdicts"

say() {
  echo "$*" | tee -a "$verdicts"
  hand_out
}

# Few files, since copying them costs time; after every part, since the last one may never end.
hand_out() {
  [ -n "${OUT:-}" ] || return 0
  local file parts=$out/parts.$BASHPID
  for file in "$out"/*.txt; do
    case ${file##*/} in
      verdicts.txt | bounds.txt) cp "$file" "$OUT/" ;;
      passed.txt) ;;
      *) echo "=== ${file##*/}" && tail -c 100000 "$file" ;;
    esac
  done > "$parts"
  mv "$parts" "$OUT/parts.txt"
  "$python" tests/gpu/bounds.py "$out" --table > "$OUT/table.md"
}

# part NAME SECONDS COMMAND ...
part() {
  local name=$1 seconds=$2 begin=$SECONDS left=$((budget - SECONDS)) code
  shift 2
  [ -z "${MOST_SECONDS:-}" ] || left=$((MOST_SECONDS < left ? MOST_SECONDS : left))
  if grep -qx "$name" "$out/passed.txt"; then
    say "PASS $name, in a run before"
    return 0
  fi
  if [ "$left" -le 0 ]; then
    say "NOT CHECKED $name: no time is left"
    return 1
  fi
  echo "=== $name"
  # Processes that a part leaves behind end with its process group, and do not disturb the next one.
  timeout --kill-after 5 "$((seconds < left ? seconds : left))" "$@" > "$out/$name.txt" 2>&1
  code=$?
  tail -n 25 "$out/$name.txt"
  if [ "$code" = 0 ]; then
    echo "$name" >> "$out/passed.txt"
    say "PASS $name, $((SECONDS - begin)) s"
  else
    say "FAIL($code) $name, $((SECONDS - begin)) s"
  fi
  return "$code"
}

machine() {
  nvidia-smi
  "$nvcc" --version
  g++ --version
  "$python" -c "import sysconfig, pathlib
headers = pathlib.Path(sysconfig.get_paths()['include'], 'Python.h')
print(headers, 'is there' if headers.exists() else 'IS MISSING: horoacc cannot be built, its kernels can')"
  "$python" -c "import numpy, cloudpickle; print('NumPy', numpy.__version__, 'cloudpickle', cloudpickle.__version__)"
  "$python" -c "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.get_device_properties(0))"
}

# One file: a kernel's, or one of the core (its kernels to the same bits as everywhere). The object gets
# its name once it is whole: --resume takes what is there.
compile() {
  local object=$core/${1//\//.}.o
  case $1 in *.cu) object=$out/$(basename "$1").o ;; esac
  [ ! -e "$object" ] || return 0
  local flags=(-std=c++20 -O3 -fPIC -fvisibility=hidden -Icsrc "-DHOROACC_VERSION=\"$version\"")
  case $1 in
    *.cu)
      "$nvcc" -std=c++20 -O3 -fmad=false -Icsrc -Xcompiler=-fPIC,-Wall,-Wextra,-fvisibility=hidden \
        -arch="${ARCH:-native}" -c "$1" -o "$object.part" && mv "$object.part" "$object"
      return
      ;;
    tests/gpu/*) # nvcc knows where CUDA's headers are
      "$nvcc" -std=c++20 -O2 -Icsrc -Itests/cpp -Itests/gpu -Xcompiler=-ffp-contract=off -c "$1" \
        -o "$object.part" && mv "$object.part" "$object"
      return
      ;;
    */execute/kernels/reduce_avx2.cc) flags+=(-mavx2 -mfma -mf16c) ;;
    */execute/kernels/reduce_avx512.cc) flags+=(-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq) ;;
  esac
  case $1 in
    csrc/execute/*) flags+=(-ffp-contract=off -fno-trapping-math) ;;
    csrc/api/python*) flags+=(-isystem "$folder/include" -isystem "$headers") ;;
    tests/cpp/*) flags+=(-Itests/cpp -ffp-contract=off) ;;
  esac
  g++ "${flags[@]}" -c "$1" -o "$object.part" && mv "$object.part" "$object"
}

# Compiles all files at once, the longest first.
compile_all() {
  folder=$("$python" -c "import torch; print(torch.__path__[0])")
  headers=$("$python" -c "import sysconfig; print(sysconfig.get_paths()['include'])")
  version=$(sed -n 's/.*__version__ = "\(.*\)"/\1/p' horoacc/_version.py)
  export folder headers version
  { ls csrc/execute/cuda/plugin/*.cu tests/gpu/{check,time}_persistent.cc tests/cpp/cuda/cuda_{reduce,pack}_test.cc
    find csrc/execute csrc/api -name '*.cc'
    find csrc -name '*.cc' -not -path '*/mpi/plugin/*' -not -path 'csrc/execute/*' -not -path 'csrc/api/*'
  } | xargs -P "$(nproc)" -I{} bash -c 'compile {}'
}

plugin() {
  "$nvcc" -shared -cudart static "$out"/*.cu.o "$core"/csrc.execute.{cuda.kernels.kernel_plan,kernels.reduce_plan}.cc.o \
    "$core/csrc.base.result.cc.o" -o "$library"
}

probe() {
  g++ -std=c++20 -O2 -Icsrc tests/gpu/probe.cc -ldl -o "$out/probe" && "$out/probe" "$library"
}

# under_mps COMMAND ... A daemon of its own: kernels of several processes run at once, and may wait
# for each other.
under_mps() {
  export CUDA_MPS_PIPE_DIRECTORY=$out/mps CUDA_MPS_LOG_DIRECTORY=$out/mps
  mkdir -p "$CUDA_MPS_PIPE_DIRECTORY"
  nvidia-cuda-mps-control -d || return 1
  # This shell gets the signal of a part that takes too long, too, and `wait` lets it act at once.
  trap 'echo quit | nvidia-cuda-mps-control; exit 143' TERM
  "$@" &
  wait $!
  local code=$?
  trap - TERM
  echo quit | nvidia-cuda-mps-control
  return "$code"
}

# Every mode of ranks on one GPU that do not take turns.
modes_in_turn() {
  local mode
  in_mode kernel 2 the_mode_is_used reductions_are_exact || return 1
  for mode in leader stream kernel cpu_reduce; do
    in_mode "$mode" 4 the_mode_is_used times_of_small_allreduce times_of_the_bound || return 1
  done
  in_mode auto 4 times_against_gloo times_of_steps
}

# The checks and the benchmark of persistent kernels, and the host's of the others, on the core.
programs() {
  local program objects
  mapfile -t objects < <(ls "$core"/csrc.*.o | grep -v 'csrc.api.')
  for program in gpu.check_persistent gpu.time_persistent cpp.cuda.cuda_reduce_test cpp.cuda.cuda_pack_test; do
    "$nvcc" -cudart static "$core/tests.$program.cc.o" "${objects[@]}" -lpthread -ldl -lrt \
      -o "$out/${program##*.}" || return 1
  done
}

# The package without CMake: the core, its Python module (torch brings pybind11) and the ops.
package() {
  local home=$out/horoacc objects
  rm -rf "$home" "$out/csrc" "$out/torch_ops" "$out/tensorflow_ops"
  cp -r horoacc "$home" && rm -rf "$home/launcher" "$home/lib" "$home"/_core*.so
  cp -r launcher "$home/launcher" && mkdir "$home/lib"
  cp -r csrc torch_ops tensorflow_ops "$out/"
  mapfile -t objects < <(ls "$core"/csrc.*.o | grep -v 'csrc.api.python')
  g++ -shared -o "$home/lib/libhoroacc.so" -Wl,-z,defs -Wl,-rpath,'$ORIGIN' "${objects[@]}" -pthread -ldl -lrt || return 1
  g++ -shared -o "$home/_core$("$python" -c "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))")" \
    "$core"/csrc.api.python*.o -Wl,-rpath,'$ORIGIN/lib' -L"$home/lib" -lhoroacc || return 1
  cp "$library" "$home/lib/"
  (cd "$out" && "$python" -c "import horoacc._core, horoacc.torch._ops as ops
print(horoacc._core.version(), ops.build_if_needed())")
}

# collectives RANKS PART ...
collectives() {
  local ranks=$1 script=$PWD/tests/gpu/check_collectives.py
  shift
  (cd "$out" && PYTHONPATH=$out "$python" -m horoacc.launcher.main --tcp -np "$ranks" "$python" "$script" "$@")
}

# in_mode MODE RANKS PART ...
in_mode() {
  HOROACC_GPU_MODE=$1 collectives "${@:2}"
}

# on_hosts RANKS_OF_EACH PART ... Hosts of one machine, whose GPUs add up inside each.
on_hosts() {
  HOROACC_SIMULATED_HOSTS=$1 in_mode auto $((${1//+/ + })) "${@:2}"
}

# The modes are measured, and chosen by that.
tuned_modes() {
  export HOROACC_SELECTION_TABLE=$out/table.json
  rm -f "$HOROACC_SELECTION_TABLE"
  (cd "$out" && PYTHONPATH=$out "$python" -m horoacc.launcher.main tune --tcp -np 2 -- --gpus --most 16M) &&
    grep gpu_leader "$HOROACC_SELECTION_TABLE" && grep -q gpu_stream "$HOROACC_SELECTION_TABLE" &&
    in_mode auto 2 the_mode_is_used reductions_are_exact
}

# killed_rank MODE RANKS. The launcher reports the death, so its exit code says nothing.
killed_rank() {
  in_mode "$1" "$2" a_killed_rank_releases_the_others | tee "$out/killed_$1.seen"
  [ "$(grep -c 'released after [0-4][.]' "$out/killed_$1.seen")" = $(($2 - 1)) ]
}

# sanitizer TOOL COMMAND ...
sanitizer() {
  "$sanitizer" --tool "$1" --error-exitcode 9 --target-processes all "${@:2}"
}

# missing_tensorflow: says what TensorFlow lacks; nothing if it can be checked.
missing_tensorflow() {
  local folder=$PWD/tests/gpu
  "$tensorflow_python" -c "import importlib.util, sys
sys.exit(importlib.util.find_spec('tensorflow') is None)" || { echo "no TensorFlow is installed" && return; }
  (cd "$out" && PYTHONPATH=$out timeout 60 "$tensorflow_python" -c "import sys
sys.path.insert(0, '$folder')
import check_tensorflow
print(check_tensorflow.missing())" 2> "$out/missing_tensorflow.txt") ||
    echo "it cannot be imported: $(tail -n 1 "$out/missing_tensorflow.txt")"
}

# tensorflow MODE RANKS PART ...
tensorflow() {
  local script=$PWD/tests/gpu/check_tensorflow.py
  (cd "$out" && HOROACC_GPU_MODE=$1 PYTHONPATH=$out "$tensorflow_python" -m horoacc.launcher.main --tcp \
    -np "$2" "$tensorflow_python" "$script" "${@:3}")
}

# All checks and timings, the promises first. NCCL from 2.30 on runs several ranks on one GPU; work
# that a killed rank has left must not be timed, so those parts come late.
nccl=${NCCL:-$("$python" -c "import glob, site; print(next((p for f in site.getsitepackages() \
  for p in glob.glob(f + '/nvidia/**/libnccl.so.2', recursive=True)), 'libnccl.so.2'))")}
export -f compile machine compile_all plugin programs package collectives in_mode on_hosts tuned_modes killed_rank sanitizer \
  tensorflow probe under_mps modes_in_turn
sanitizer=$(command -v compute-sanitizer || echo "${nvcc%/*}/compute-sanitizer")
export nvcc python tensorflow_python out core library nccl sanitizer

part machine 60 bash -c machine
part compile 900 bash -c compile_all
part plugin 30 bash -c plugin
if [ "$option" = --build ]; then
  part programs 90 bash -c programs
  exit
fi
part probe 60 bash -c probe
# One g++ that reads torch's headers; the kernels need none of it.
part package 240 bash -c package &
packaging=$!
part programs 90 bash -c programs
gpus=$("$python" -c "import torch; print(torch.cuda.device_count())" 2> /dev/null || echo 0)
kernels() {
  local name
  for name in "$@"; do part "$name" 60 "$python" tests/gpu/check_kernels.py "$library" "$name"; done
}
kernels times_of_pack times_of_reduce launches_of_a_pack
# A peer that hangs must not take the figures with it.
part times_of_persistent 75 "$out/time_persistent" "$library" "$nccl" ||
  part times_of_persistent_alone 60 "$out/time_persistent" "$library" /nowhere/libnccl.so.2
wait "$packaging"
part times_of_cpu_reduce 60 bash -c "in_mode cpu_reduce 4 times_of_allreduce"
for ranks in 4 2 8; do
  part "times_of_leader_$ranks" 40 bash -c "in_mode leader $ranks times_of_the_bound"
done
part times_of_steps 60 bash -c "in_mode auto 4 times_of_steps"
part times_against_gloo 60 bash -c "in_mode auto 4 times_against_gloo"
if command -v nvidia-cuda-mps-control > /dev/null; then
  part modes_under_mps 120 bash -c "under_mps modes_in_turn"
else
  say "NOT CHECKED modes of ranks that share a GPU, with MPS: there is no nvidia-cuda-mps-control"
fi
for mode in leader stream; do
  part "times_of_$mode" 60 bash -c "in_mode $mode 4 times_of_allreduce times_of_small_allreduce times_of_steps"
done
part times_of_small_cpu_reduce 60 bash -c "in_mode cpu_reduce 4 times_of_small_allreduce times_of_steps"
# Parts without timings run at once: they mostly start processes.
kernels reduce_is_exact &
kernels pack_is_exact factors_are_exact nonfinite_is_counted &
for ranks in 4 8 1 2; do
  part "persistent_of_$ranks" 60 "$out/check_persistent" "$library" "operations_of_$ranks" &
done
wait
part persistent_algorithms 60 "$out/check_persistent" "$library" algorithms
part persistent_abort 30 "$out/check_persistent" "$library" an_abort_and_a_deadline
part persistent_residency 30 "$out/check_persistent" "$library" more_blocks_than_fit
exact="the_mode_is_used reductions_are_exact movements_are_exact streams_are_kept training_is_the_same"
for ranks in 4 8 2 1; do
  for mode in leader stream cpu_reduce; do
    part "collectives_of_${ranks}_$mode" 120 bash -c "in_mode $mode $ranks $exact" &
  done
  wait
done
for hosts in 2+2 3+1; do
  part "collectives_of_hosts_$hosts" 120 bash -c "on_hosts $hosts $exact" &
done
wait
part killed_rank_of_hosts 40 bash -c "HOROACC_SIMULATED_HOSTS=2+2 killed_rank auto 4"
part times_of_hosts 40 bash -c "on_hosts 2+2 times_of_allreduce times_of_small_allreduce"
for mode in leader stream cpu_reduce; do
  part "killed_rank_$mode" 40 bash -c "killed_rank $mode 4"
done
for mode in leader stream cpu_reduce; do
  part "small_buffer_$mode" 90 bash -c \
    "HOROACC_FUSION_THRESHOLD=65536 HOROACC_GPU_CHUNK_BYTES=65536 in_mode $mode 4 reductions_are_exact" &
done
wait
part what_is_agreed_on 30 bash -c "in_mode auto 2 the_mode_is_used a_capture_is_refused" &
part cuda_graphs 120 bash -c "in_mode auto 2 graphs_go_on_around_it" &
part sets_take_turns 60 bash -c "in_mode stream 4 sets_take_turns && \
  CUDA_DEVICE_MAX_CONNECTIONS=1 in_mode stream 4 sets_take_turns" &
# Mode K in the engine: a rank alone; without MPS two on one GPU are refused; several have one each.
part collectives_of_1_kernel 60 bash -c "in_mode kernel 1 the_mode_is_used reductions_are_exact \
  movements_are_exact" &
wait
part tuned_modes 90 bash -c tuned_modes
if [ "$gpus" -gt 1 ]; then
  part "collectives_of_${gpus}_kernel" 120 bash -c "in_mode kernel $gpus $exact times_of_allreduce \
    times_of_small_allreduce"
  part killed_rank_kernel 40 bash -c "killed_rank kernel $gpus"
else
  part impossible_mode 30 bash -c "in_mode kernel 2 a_mode_is_refused"
  say "NOT CHECKED mode K of ranks with a GPU each: there is one GPU"
fi
# NCCL in the engine: a rank alone, what cannot be loaded, and a GPU for each rank.
export HOROACC_NCCL_LIBRARY=$nccl
if "$python" -c "import ctypes; ctypes.CDLL('$nccl')" 2> "$out/no_nccl.txt"; then
  part collectives_of_1_nccl 60 bash -c "in_mode nccl 1 the_mode_is_used reductions_are_exact"
  if [ "$gpus" -gt 1 ]; then
    part "collectives_of_${gpus}_nccl" 120 bash -c "in_mode nccl $gpus the_mode_is_used \
      reductions_are_exact streams_are_kept training_is_the_same times_of_allreduce \
      times_of_small_allreduce"
    part killed_rank_nccl 40 bash -c "killed_rank nccl $gpus"
  else
    # Refused, or run, by NCCL's own rules.
    part two_ranks_on_one_gpu_nccl 60 bash -c \
      "NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=4 in_mode nccl 2 reductions_are_exact || \
       in_mode nccl 2 a_mode_is_refused"
  fi
else
  say "NOT CHECKED mode NCCL: $(tail -n 1 "$out/no_nccl.txt")"
fi
part nccl_that_is_missing 30 bash -c \
  "HOROACC_NCCL_LIBRARY=/nowhere/libnccl.so.2 in_mode nccl 2 a_mode_is_refused"
without=$(missing_tensorflow)
if [ -z "$without" ]; then
  for mode in leader stream cpu_reduce; do
    for ranks in 2 4 1; do
      part "tensorflow_of_${ranks}_$mode" 120 bash -c "tensorflow $mode $ranks reductions_are_exact \
        movements_are_exact streams_are_kept variables_are_broadcast \
        sessions_broadcast_variables gradients_are_the_same"
    done
  done
else
  say "NOT CHECKED tensorflow: $without"
fi
# torch's allocator would hide what lies beyond a tensor.
if command -v "$sanitizer" > /dev/null; then
  for tool in memcheck racecheck; do
    part "${tool}_kernels" 120 bash -c "PYTORCH_NO_CUDA_MEMORY_CACHING=1 sanitizer $tool '$python' \
      tests/gpu/check_kernels.py '$library' nonfinite_is_counted factors_are_exact" &
    part "${tool}_persistent" 120 bash -c \
      "sanitizer $tool '$out/check_persistent' '$library' algorithms" &
  done
  wait
else
  say "NOT CHECKED compute-sanitizer: there is none beside $nvcc or on the PATH"
fi
part host_tests 60 bash -c '"$out/cuda_reduce_test" && "$out/cuda_pack_test"'

echo "=== verdicts, after $SECONDS s"
cat "$verdicts"
echo "=== bounds"
"$python" tests/gpu/bounds.py "$out" > "$out/bounds.seen"
met=$?
cat "$out/bounds.seen"
mv "$out/bounds.seen" "$out/bounds.txt"
"$python" tests/gpu/bounds.py "$out" --table > "$out/table.md"
hand_out
[ "$met" = 0 ] && ! grep -q '^FAIL' "$verdicts"
