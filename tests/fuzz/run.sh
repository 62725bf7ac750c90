#!/usr/bin/env bash
# Runs the fuzzers of a build, all together for so many seconds, some at a time, from the corpora of the
# tree and of earlier runs: run.sh BUILD SECONDS JOBS. Fails if one of them finds anything.
set -euo pipefail
tree=$(dirname "${BASH_SOURCE[0]}")/corpus
build=$1
mkdir -p "$build/found"
fuzzers=("$build"/fuzzers/*_fuzz)
each=$(($2 * $3 / ${#fuzzers[@]}))
one() {
  name=$(basename "$3")
  mkdir -p "$2/corpus/$name"
  if ! ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1 "$3" -max_total_time="$4" -timeout=60 \
    -rss_limit_mb=2048 -use_value_profile=1 -print_final_stats=1 -artifact_prefix="$2/found/$name-" \
    "$2/corpus/$name" "$1/$name" > "$2/$name.log" 2>&1; then
    tail -n 60 "$2/$name.log"
    echo "$name: found something, see $2/found and $2/$name.log"
    return 1
  fi
  grep -E "stat::number_of_executed_units|^Done" "$2/$name.log" | sed "s/^/$name: /"
}
export -f one
printf "%s\n" "${fuzzers[@]}" |
  xargs -P "$3" -I "{}" bash -c "one '$tree' '$build' '{}' '$((each > 0 ? each : 1))'"
