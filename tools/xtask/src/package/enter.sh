#!/bin/sh
# Makes a copy of the files below $3, enters it and runs "$TRY" there.
# $1: an empty directory, $2: the package.
# Runs in its own mount and pid namespace: everything disappears with the last process.
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 trial "$1"
cd "$1"
mkdir up work root
cp "$2" up/trial.deb
mount -t overlay -o "lowerdir=$3,upperdir=$PWD/up,workdir=$PWD/work" trial root
mount -t proc proc root/proc
mount --rbind /dev root/dev
mount --rbind /sys root/sys
mount -t tmpfs run root/run
mount -t tmpfs tmp root/tmp
status=0
chroot root sh -e -c "$TRY" || status=$?
# New or changed files, except for dpkg's own records and logs.
find up -type f -o -type l -o -type c | sed 's/^up//' | sort > left
grep -v -e '^/var/lib/dpkg/' -e '^/var/log/' -e '^/var/cache/' -e '^/trial.deb$' -e '^/etc/.*-$' -e '^/etc/.pwd.lock$' \
    -e '^/etc/group$' -e '^/etc/gshadow$' left > more || true
if [ -s more ]; then echo "it leaves behind:"; cat more; status=1; fi
for file in group gshadow; do
    if [ -e up/etc/$file ] && ! cmp -s up/etc/$file "$3/etc/$file"; then echo "/etc/$file has changed"; status=1; fi
done
exit $status
