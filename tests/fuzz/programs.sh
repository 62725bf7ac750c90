#!/bin/sh
# Installs Debian's clang if it is missing here, or says so.
set -eu
command -v clang++ > /dev/null && exit 0
if test "$(id -u)" = 0 && command -v apt-get > /dev/null; then
  if (apt-get -qq update; DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install --no-install-recommends -y clang libclang-rt-dev) > /dev/null; then
    exit 0
  fi
fi
echo "make fuzz needs Debian's packages clang and libclang-rt-dev, which could not be installed here" >&2
exit 1
