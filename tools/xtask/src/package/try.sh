#!/bin/sh
# Checks of the package, run inside the copy.
dpkg --no-triggers --install /trial.deb
dpkg --verify upshift
upshift --version
getent group upshift
upshift daemon --check --config /etc/upshift/daemon.toml
for page in /usr/share/man/man1/upshift*.1.gz; do
    if command -v man >/dev/null; then
        said=$(MANWIDTH=80 man --warnings -E UTF-8 -l "$page" 2>&1 >/dev/null)
        if [ -n "$said" ]; then echo "$page: $said"; exit 1; fi
    fi
done
bash -n /usr/share/bash-completion/completions/upshift
if command -v systemd-analyze >/dev/null; then
    for unit in upshift-daemon upshift-sched; do
        said=$(systemd-analyze verify "/usr/lib/systemd/system/$unit.service" 2>&1) || { echo "$said"; exit 1; }
        # Warnings about other units are ignored.
        if echo "$said" | grep "$unit"; then exit 1; fi
    done
fi
# The daemon without systemd: with the capabilities of its unit, and without a network.
unit=/usr/lib/systemd/system/upshift-daemon.service
rights=$(sed -n 's/^CapabilityBoundingSet=//p' $unit | tr 'A-Z' 'a-z' | sed 's/cap_/+/g; s/ /,/g')
command=$(sed -n 's/^ExecStart=//p' $unit)
mkdir /run/upshift
unshare --net setpriv --bounding-set=-all,"$rights" --inh-caps=-all --no-new-privs $command > /tmp/said 2>&1 &
daemon=$!
for wait in $(seq 200); do
    if [ -S /run/upshift/daemon.sock ]; then break; fi
    sleep 0.05
done
upshift daemon --status > /tmp/status || { cat /tmp/said; exit 1; }
grep -q '"enforcing": true' /tmp/status || { cat /tmp/said; echo "it does not elevate with the rights of its unit"; exit 1; }
for wait in $(seq 3); do kill -HUP $daemon; sleep 0.3; done
grep -q 'read again' /tmp/said || { cat /tmp/said; echo "it does not read its configuration again"; exit 1; }
# After an orderly end no file and no process remains.
kill -TERM $daemon
wait $daemon
if [ -n "$(ls -A /run/upshift)" ]; then ls -A /run/upshift; echo "the daemon leaves that behind"; exit 1; fi
# A second installation keeps a changed configuration.
echo '# changed' >> /etc/upshift/daemon.toml
dpkg --no-triggers --force-confold --install /trial.deb
grep -q '# changed' /etc/upshift/daemon.toml
mkdir -p /etc/systemd/system/multi-user.target.wants
ln -s $unit /etc/systemd/system/multi-user.target.wants/
dpkg --no-triggers --remove upshift
if [ -e /usr/bin/upshift ]; then echo "the command stays"; exit 1; fi
grep -q '# changed' /etc/upshift/daemon.toml
dpkg --no-triggers --purge upshift
if [ -e /etc/upshift ] || [ -e /run/upshift ] || getent group upshift; then echo "files or the group remain after the purge"; exit 1; fi
