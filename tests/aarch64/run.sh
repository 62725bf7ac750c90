#!/bin/sh
# Runs the C++ tests that were built for aarch64, but for those of left_out.txt, and compares the
# kernels' results with this machine's. Usage: run.sh AARCH64_BUILD NATIVE_BUILD JOBS
set -eu
build=$1 native=$2 jobs=$3
here=$(dirname "$0")
emulator="qemu-aarch64 -L /usr/aarch64-linux-gnu"

names=$(sed -n 's/^\([a-z_0-9]*\): .*/\1/p' "$here/left_out.txt")
for name in $names; do
  test -x "$build/cpp_tests/$name" || { echo "left_out.txt names $name, which is no test"; exit 1; }
done
ctest --test-dir "$build" --output-on-failure -j "$jobs" -E "^($(echo $names | tr ' ' '|'))\$"

"$native/cpp_tests/kernel_bits" > "$build/bits_here"
$emulator "$build/cpp_tests/kernel_bits" > "$build/bits_aarch64"
diff "$build/bits_here" "$build/bits_aarch64"
echo "the kernels give the same bits: $(wc -l < "$build/bits_here") types, operations and numbers of ranks"
