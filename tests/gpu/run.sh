#!/usr/bin/env bash
# Builds, checks and times what HoroACC has for GPUs, on a machine with a GPU, CUDA 13 (nvcc), Python
# 3.10 or newer and torch 2.10 or newer. Needs neither network, MPI nor an installed HoroACC.
#
#   tests/gpu/run.sh [folder]     everything that is said goes to the folder too (build/gpu)
#
# A part that fails does not end the others; the last lines say which ones did. TensorFlow is checked
# where there is one that uses the GPU, for PYTHON or for TENSORFLOW_PYTHON (another interpreter of
# the same version, if torch and TensorFlow are not installed together); else the last lines say that
# it was not.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=$(mkdir -p "${1:-build/gpu}" && cd "${1:-build/gpu}" && pwd)
python=${PYTHON:-$(command -v python3 || command -v python)}
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
library=$out/libhoroacc_cuda.so
verdicts=()

# part NAME SECONDS COMMAND ...
part() {
  local name=$1 seconds=$2 begin=$SECONDS
  shift 2
  echo "=== $name"
  timeout "$seconds" "$@" 2>&1 | tee "$out/$name.txt"
  local code=${PIPESTATUS[0]}
  verdicts+=("$([ "$code" = 0 ] && echo PASS || echo "FAIL($code)") $name, $((SECONDS - begin)) s")
}

build() {
  local options=(-std=c++20 -O3 -fmad=false -Icsrc -Xcompiler=-fPIC,-Wall,-Wextra,-fvisibility=hidden
    -gencode "arch=compute_90,code=[sm_90,compute_90]")
  local sources=(csrc/execute/cuda/*.cu csrc/execute/cuda/kernel_plan.cc csrc/execute/reduce_plan.cc)
  local source objects=() jobs=()
  for source in "${sources[@]}"; do
    local object
    object=$out/$(basename "$source").o
    objects+=("$object")
    "$nvcc" "${options[@]}" -c "$source" -o "$object" &
    jobs+=($!)
  done
  local job
  for job in "${jobs[@]}"; do wait "$job" || return 1; done
  "$nvcc" -shared -cudart static "${objects[@]}" -o "$library"
}

machine() {
  nvidia-smi
  "$nvcc" --version
  "$python" -c "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.get_device_properties(0))"
}

host_tests() {
  local test
  for test in cuda_reduce cuda_pack; do
    g++ -std=c++20 -O2 -ffp-contract=off -Icsrc -Itests/cpp "tests/cpp/${test}_test.cc" \
      csrc/execute/cuda/kernel_plan.cc csrc/execute/reduce_plan.cc csrc/base/result.cc \
      -o "$out/${test}_test" && "$out/${test}_test" || return 1
  done
}

# The checks and the benchmark of persistent kernels: the core's schedules and compiler, and the plug-in.
persistent_programs() {
  local program
  for program in check_persistent time_persistent; do
    "$nvcc" -std=c++20 -O2 -Icsrc -Itests/cpp -Itests/gpu -Xcompiler=-ffp-contract=off -cudart static \
      "tests/gpu/$program.cc" csrc/execute/cuda/{nccl_calls,kernel_{compiler,plan,shapes,trace}}.cc \
      csrc/execute/reduce_plan.cc csrc/base/result.cc csrc/schedule/{algorithms,cost}.cc \
      csrc/schedule/generate/*.cc -ldl -o "$out/$program" || return 1
  done
}

# NCCL from 2.30 on runs several ranks on one GPU; NCCL=path names one, else torch's is tried.
nccl=${NCCL:-$("$python" -c "import glob, site; print(next((p for f in site.getsitepackages() \
  for p in glob.glob(f + '/nvidia/**/libnccl.so.2', recursive=True)), 'libnccl.so.2'))")}
times_of_persistent() {
  "$out/time_persistent" "$library" "$nccl"
}

# The whole of HoroACC without CMake: the core, its Python module (torch brings pybind11) and the ops.
package() {
  local home=$out/horoacc objects=$out/core
  rm -rf "$home" && mkdir -p "$objects"
  cp -r horoacc "$home" && rm -rf "$home/launcher" "$home/lib" "$home"/_core*.so
  cp -r launcher "$home/launcher" && mkdir "$home/lib"
  rm -rf "$out/csrc" "$out/torch_ops" "$out/tensorflow_ops"
  cp -r csrc torch_ops tensorflow_ops "$out/"
  local folder version
  folder=$("$python" -c "import torch; print(torch.__path__[0])")
  version=$(sed -n 's/.*__version__ = "\(.*\)"/\1/p' horoacc/_version.py)
  export folder version objects
  compile() {
    local flags=(-std=c++20 -O3 -fPIC -fvisibility=hidden -Icsrc "-DHOROACC_VERSION=\"$version\"")
    case $1 in
      */execute/reduce_avx2.cc) flags+=(-mavx2 -mfma -mf16c) ;;
      */execute/reduce_avx512.cc) flags+=(-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq) ;;
    esac
    case $1 in
      csrc/execute/*) flags+=(-ffp-contract=off -fno-trapping-math) ;;
      csrc/api/python*) flags+=(-isystem "$folder/include" -isystem "$("$python" -c \
        "import sysconfig; print(sysconfig.get_paths()['include'])")") ;;
    esac
    g++ "${flags[@]}" -c "$1" -o "$objects/${1//\//.}.o"
  }
  export -f compile
  find csrc -name '*.cc' -not -path '*/mpi_plugin/*' -print0 |
    xargs -0 -P "$(nproc)" -I{} bash -c 'compile {}' || return 1
  g++ -shared -o "$home/lib/libhoroacc.so" -Wl,-rpath,'$ORIGIN' \
    $(ls "$objects"/*.o | grep -v 'csrc.api.python') -pthread -ldl -lrt || return 1
  g++ -shared -o "$home/_core$("$python" -c "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))")" \
    "$objects"/csrc.api.python*.o -Wl,-rpath,'$ORIGIN/lib' -L"$home/lib" -lhoroacc || return 1
  cp "$library" "$home/lib/"
  (cd "$out" && "$python" -c "import horoacc.torch._ops as ops; print(ops.build_if_needed())")
}

# collectives RANKS PART ...
collectives() {
  local ranks=$1 script=$PWD/tests/gpu/check_collectives.py
  shift
  (cd "$out" && PYTHONPATH=$out "$python" -m horoacc.launcher.main --tcp -np "$ranks" "$python" "$script" "$@")
}

# The launcher tells of the death, so that its own code says nothing.
killed_rank() {
  local ranks=${ranks:-4}
  HOROACC_GPU_MODE=$1 collectives "$ranks" a_killed_rank_releases_the_others | tee "$out/killed_$1.txt"
  [ "$(grep -c 'released after [0-4][.]' "$out/killed_$1.txt")" = $((ranks - 1)) ]
}

# in_mode MODE RANKS PART ...
in_mode() {
  HOROACC_GPU_MODE=$1 collectives "${@:2}"
}

sanitizer() {
  local tool program=${nvcc%/*}/compute-sanitizer
  command -v compute-sanitizer > /dev/null && program=compute-sanitizer
  for tool in memcheck racecheck; do
    "$program" --tool "$tool" --error-exitcode 9 --target-processes all \
      "$python" tests/gpu/check_kernels.py "$library" nonfinite_is_counted factors_are_exact || return 1
    "$program" --tool "$tool" --error-exitcode 9 "$out/check_persistent" "$library" algorithms || return 1
  done
}

# missing_tensorflow: says what TensorFlow lacks; nothing if it can be checked.
missing_tensorflow() {
  local folder=$PWD/tests/gpu
  "$tensorflow_python" -c "import importlib.util, sys
sys.exit(importlib.util.find_spec('tensorflow') is None)" || { echo "no TensorFlow is installed" && return; }
  (cd "$out" && PYTHONPATH=$out "$tensorflow_python" -c "import sys
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

export -f tensorflow build machine host_tests persistent_programs times_of_persistent sanitizer package collectives killed_rank in_mode
tensorflow_python=${TENSORFLOW_PYTHON:-$python}
export nvcc python tensorflow_python out library nccl
part machine 60 bash -c machine
part build 300 bash -c build
kernels=(reduce_is_exact factors_are_exact pack_is_exact nonfinite_is_counted times_of_pack
  times_of_reduce times_of_launches)
for kernel in "${kernels[@]}"; do
  part "$kernel" 180 "$python" tests/gpu/check_kernels.py "$library" "$kernel"
done
part persistent_programs 240 bash -c persistent_programs
for ranks in 1 2 3 4 8; do
  part "persistent_of_$ranks" 120 "$out/check_persistent" "$library" "operations_of_$ranks"
done
part persistent_algorithms 120 "$out/check_persistent" "$library" algorithms
part persistent_abort 60 "$out/check_persistent" "$library" an_abort_and_a_deadline
part persistent_residency 60 "$out/check_persistent" "$library" more_blocks_than_fit
part times_of_persistent 240 bash -c times_of_persistent
part package 600 bash -c package
for mode in cpu_reduce leader stream; do
  for ranks in 1 2 4 8; do
    part "collectives_of_${ranks}_$mode" 240 bash -c "in_mode $mode $ranks the_mode_is_used \
      reductions_are_exact movements_are_exact streams_are_kept training_is_the_same"
  done
  part "small_buffer_$mode" 120 bash -c \
    "HOROACC_FUSION_THRESHOLD=65536 HOROACC_GPU_CHUNK_BYTES=65536 in_mode $mode 4 reductions_are_exact"
  part "killed_rank_$mode" 60 bash -c "killed_rank $mode"
  part "times_of_collectives_$mode" 240 bash -c \
    "in_mode $mode 4 times_of_allreduce times_of_small_allreduce times_of_steps"
done
part what_is_agreed_on 60 bash -c "in_mode auto 2 the_mode_is_used"
# Mode K in the engine: a rank alone; without MPS two on one GPU are refused; several have one each.
part collectives_of_1_kernel 240 bash -c "in_mode kernel 1 the_mode_is_used reductions_are_exact \
  movements_are_exact"
gpus=$("$python" -c "import torch; print(torch.cuda.device_count())")
if [ "$gpus" -gt 1 ]; then
  part "collectives_of_${gpus}_kernel" 240 bash -c "in_mode kernel $gpus the_mode_is_used \
    reductions_are_exact movements_are_exact streams_are_kept training_is_the_same times_of_allreduce \
    times_of_small_allreduce"
  part killed_rank_kernel 60 bash -c "ranks=$gpus killed_rank kernel"
else
  part impossible_mode 60 bash -c "in_mode kernel 2 a_mode_is_refused"
fi
without=$(missing_tensorflow)
if [ -z "$without" ]; then
  for mode in cpu_reduce leader stream; do
    for ranks in 1 2 4; do
      part "tensorflow_of_${ranks}_$mode" 240 bash -c "tensorflow $mode $ranks reductions_are_exact \
        movements_are_exact streams_are_kept variables_are_broadcast \
        sessions_broadcast_variables gradients_are_the_same"
    done
  done
else
  verdicts+=("NOT CHECKED tensorflow: $without")
fi
# NCCL in the engine: a rank alone, what cannot be loaded, and a GPU for each rank.
export HOROACC_NCCL_LIBRARY=$nccl
if "$python" -c "import ctypes; ctypes.CDLL('$nccl')" 2> "$out/no_nccl.txt"; then
  part collectives_of_1_nccl 240 bash -c "in_mode nccl 1 the_mode_is_used reductions_are_exact"
  if [ "$gpus" -gt 1 ]; then
    part "collectives_of_${gpus}_nccl" 240 bash -c "in_mode nccl $gpus the_mode_is_used \
      reductions_are_exact streams_are_kept training_is_the_same times_of_allreduce \
      times_of_small_allreduce"
    part killed_rank_nccl 60 bash -c "ranks=$gpus killed_rank nccl"
  else
    # Refused, or run, by NCCL's own rules.
    part two_ranks_on_one_gpu_nccl 120 bash -c \
      "NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_MAX_CTAS=4 in_mode nccl 2 reductions_are_exact || \
       in_mode nccl 2 a_mode_is_refused"
  fi
else
  verdicts+=("NOT CHECKED mode NCCL: $(tail -n 1 "$out/no_nccl.txt")")
fi
part nccl_that_is_missing 60 bash -c \
  "HOROACC_NCCL_LIBRARY=/nowhere/libnccl.so.2 in_mode nccl 2 a_mode_is_refused"
part times_of_leader 240 bash -c \
  "for ranks in 2 4 8; do in_mode leader \$ranks times_of_the_leaders_bound || exit 1; done"
part sanitizer 240 bash -c sanitizer
part host_tests 180 bash -c host_tests

echo "=== verdicts"
printf '%s\n' "${verdicts[@]}" | tee "$out/verdicts.txt"
! grep -q '^FAIL' "$out/verdicts.txt"
