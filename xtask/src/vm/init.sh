#!/bin/busybox sh
# The guest's first program, run by `cargo xtask vm`: puts this machine's files and the unpacked tools together, runs the job, powers off.
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
ln -s /proc/self/fd /dev/fd
ln -s /proc/self/fd/0 /dev/stdin
ln -s /proc/self/fd/1 /dev/stdout
ln -s /proc/self/fd/2 /dev/stderr

trouble() { echo "vm: $1" >/dev/console; }

while read -r module; do
    insmod "/modules/$module.ko" || trouble "module $module cannot be loaded"
done </modules/order

# The ports on which the command's output and its status leave.
port() {
    for dir in /sys/class/virtio-ports/*; do
        [ "$(cat "$dir/name")" = "$1" ] && echo "/dev/${dir##*/}"
    done
}
output=$(port output)
status=$(port status)

options=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o "ro,$options,cache=loose" root /root || trouble "the host's files cannot be seen"
mount -t 9p -o "ro,$options,cache=loose" tools /tools || trouble "the tools cannot be seen"
mount -t 9p -o "ro,$options" job /job || trouble "the job cannot be seen"
mount -t tmpfs -o mode=755 scratch /scratch
mkdir /scratch/upper /scratch/work
mount -t overlay -o lowerdir=/tools:/root,upperdir=/scratch/upper,workdir=/scratch/work overlay /new || trouble "no overlay"
for dir in proc sys dev dev/pts dev/shm; do mount -o bind "/$dir" "/new/$dir"; done
mount -t tmpfs tmpfs /new/run
mkdir /new/run/job
mount -o bind /job /new/run/job
share=$(cat /job/share)
if [ -n "$share" ]; then
    mkdir -p "/new$share"
    mount -t 9p -o "rw,$options,cache=mmap" share "/new$share" || trouble "$share cannot be shared"
fi

PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot /new /bin/sh /run/job/run </dev/null >"$output" 2>&1
result=$?
[ -n "$share" ] && umount "/new$share"
echo $result >"$status"
poweroff -f
