#!/bin/busybox sh
# The first process of the guest. It loads the modules with busybox, and then switches to the host's file system.
export PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do
    insmod "$module" || echo "cannot load ${module}"
done
mount -t 9p -o trans=virtio,version=9p2000.L,cache=loose,msize=512000,ro host /lower || echo "cannot mount the host's files"
mount -t tmpfs tmpfs /upper
mkdir /upper/new /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/new,workdir=/upper/work overlay /root || echo "cannot mount the overlay"
share=$(sed 's/.*ofi_share=\([^ ]*\).*/\1/' /proc/cmdline)
mkdir -p "/root$share" /root/proc /root/dev /root/sys /root/run /root/tmp
# Both sides write here, so nothing may be cached.
mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=512000 share "/root$share" || echo "cannot mount the share"
mount --move /dev /root/dev
mkdir -p /root/tmp/ofi-vm
cp /guest.sh /bin/busybox /root/tmp/ofi-vm/
umount /proc
exec switch_root /root /bin/sh /tmp/ofi-vm/guest.sh "$share"
