#!/bin/sh
# Installs the Debian packages of the engines that are missing here, or says which they are.
set -eu
PATH=$PATH:/usr/sbin:/sbin
missing=
for pair in slurmctld:slurmctld slurmd:slurmd srun:slurm-client munged:munge \
  java:default-jre-headless; do
  command -v "${pair%%:*}" > /dev/null || missing="$missing ${pair#*:}"
done
# Slurm's plug-in for PMIx opens this library by its full name.
ls /usr/lib/*/pmix2/lib/libpmix.so > /dev/null 2>&1 || missing="$missing libpmix-dev"
test -n "$missing" || exit 0
if test "$(id -u)" = 0 && command -v apt-get > /dev/null; then
  # shellcheck disable=SC2086 # several names
  if (apt-get -qq update; DEBIAN_FRONTEND=noninteractive \
    apt-get -qq install --no-install-recommends -y $missing) > /dev/null; then
    exit 0
  fi
fi
echo "make test-engines needs Debian's packages$missing, which could not be installed here" >&2
exit 1
