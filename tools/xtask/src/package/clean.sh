#!/bin/sh
# The package in a Debian that has only its base: installed, serves a page, removed.
dpkg --no-triggers --install /trial.deb
upshift --version
upshift daemon --check --config /etc/upshift/daemon.toml
mkdir /tmp/site
echo 'a page of the package' > /tmp/site/page
upshift serve /tmp/site --check --listen 127.0.0.1:0
upshift serve /tmp/site --listen 127.0.0.1:0 > /tmp/said 2>&1 &
server=$!
for wait in $(seq 200); do
    port=$(sed -n 's,^serving .* on http://127.0.0.1:,,p' /tmp/said)
    if [ -n "$port" ]; then break; fi
    sleep 0.05
done
bash -c "exec 3<>/dev/tcp/127.0.0.1/$port
printf 'GET /page HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n' >&3
cat <&3" > /tmp/answer || { cat /tmp/said; exit 1; }
grep -q 'a page of the package' /tmp/answer || { cat /tmp/said /tmp/answer; exit 1; }
kill -TERM $server
wait $server
dpkg --no-triggers --purge upshift
