#!/bin/bash
# In a fresh root, as root: installs martlet.deb, runs Redis as its unit does, kills the leader under a connection, ends it, and removes the package.
# Nothing of it may be left.
set -euo pipefail
port=$1

files() {
    # What other programs write where they log and keep their state is not the package's.
    find / -xdev \( -path /proc -o -path /sys -o -path /tmp -o -path /run -o -path /var/lib/dpkg -o -path /var/log -o -path /var/lib/redis \
        -o -path /var/cache \) -prune -o -print | sort
}
fail() {
    echo "trial: $*" >&2
    cat /tmp/run.log >&2 || true
    exit 1
}
await() {
    # Until the log has this so many times.
    until [ "$(grep -c "$1" /tmp/run.log || true)" -ge "$2" ]; do
        kill -0 "$run" 2>/dev/null || fail "martlet run has ended before it said: $1"
        sleep 0.1
    done
}
ask() {
    printf '%s\r\n' "$1" >&3
    IFS= read -r -t 60 answer <&3 || fail "no answer to $1"
    [ "${answer%$'\r'}" = "$2" ] || fail "$1 is answered $answer, not $2"
}

# Before dpkg knows of it, so that its directories that stay are seen as well.
files >/tmp/before
dpkg --install /martlet.deb
martlet --version
for file in /usr/share/man/man1/martlet-run.1* /usr/lib/systemd/system/martlet@.service /usr/share/doc/martlet/examples/supervisord.conf /usr/share/bash-completion/completions/martlet; do
    [ -s "$file" ] || fail "$file is not there"
done
unit=/usr/lib/systemd/system/martlet-redis.service
command=$(sed -n 's/^ExecStart=//p' $unit)
[ -n "$command" ] || fail "$unit starts nothing"

# What systemd makes for it.
install -d -o redis -g redis /run/redis
# shellcheck disable=SC2086 # it is several words
: >/tmp/run.log
setpriv --reuid=redis --regid=redis --clear-groups $command --port "$port" >>/tmp/run.log 2>&1 &
run=$!
await 'replicas hold the state' 1
exec 3<>"/dev/tcp/127.0.0.1/$port"
ask 'INCR counted' ':1'
for kill in 1 2 3; do
    leader=$(sed -n 's/^martlet: replica \([0-9]*\) leads.*/\1/p' /tmp/run.log | tail -1)
    process=$(sed -n "s/^martlet: replica $leader is process \([0-9]*\)/\1/p" /tmp/run.log | tail -1)
    kill -KILL "$process"
    ask 'INCR counted' ":$((kill + 1))"
    await 'replicas hold the state' $((kill + 1))
done
exec 3>&-
kill -TERM "$run"
wait "$run" || fail "martlet run has ended with $?"
for process in /proc/[0-9]*; do
    case $(tr '\0' ' ' <"$process/cmdline" 2>/dev/null || true) in
    *redis* | *martlet*) fail "$process is left: $(tr '\0' ' ' <"$process/cmdline")" ;;
    esac
done
[ -s /var/lib/redis/dump.rdb ] || fail "Redis has not saved at its end, as its configuration says"

dpkg --purge martlet
files >/tmp/after
diff /tmp/before /tmp/after || fail "the package has left or taken files"
echo "trial: installed, used through 3 kills under one connection, and removed"
