# The first process on the host's file system: creates the devices, runs the command, and reports its exit status.
share=$1
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
: >"$share/up"
# In emulation a program of the host takes a quarter of a second and more to start, and busybox, in memory, less.
for applet in mount mkdir hostname cat ls head cp sync; do
    eval "$applet() { /tmp/ofi-vm/busybox $applet \"\$@\"; }"
done
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm 2>/dev/null || { mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm; }
mkdir -p /dev/pts && mount -t devpts devpts /dev/pts
ulimit -l unlimited
# All tests run as threads of one process here, and each shared-memory segment needs a descriptor.
ulimit -n 65536

fail() {
    echo "the machine cannot be set up: $*"
    sync
    /tmp/ofi-vm/busybox poweroff -f
}

# Programs that use the host's name (mpirun) reach this host.
hostname guest
echo "127.0.0.1 guest" >>/etc/hosts
# No interface answers ARP for an address of another.
echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
# One `ip` and one `rdma` do it all, for the same reason.
{
    # One device, on an interface without a peer.
    cat <<END
link set lo up
link add roce0 type dummy
addr add 10.77.0.1/24 dev roce0
addr add fd77::1/64 dev roce0 nodad
link set roce0 up
link add switch type bridge
link set switch up
END
    # Two more devices, connected by a wire, for link down, loss and delay (netem). They cannot be in network namespaces
    # of their own: soft-RoCE routes only in the initial one, up to Linux 6.1 at least. So rules route packets for the
    # other end to the wire before the local table applies. A bridge connects the two ends: taking down its ports
    # removes the carrier at both ends, as a cut cable does, and keeps their routes.
    for end in 0 1; do
        cat <<END
link add wire$end address 02:00:00:78:00:0$end type veth peer name plug$end
link set plug$end master switch up
addr add 10.78.0.$((end + 1))/32 dev wire$end
link set wire$end up
END
    done
    # Over this wire the ARP reply arrives before rdma_cm waits for it, and rdma_cm would then wait until its time
    # limit. So the entries are permanent.
    for end in 0 1; do
        echo "neigh add 10.78.0.$((2 - end)) lladdr 02:00:00:78:00:0$((1 - end)) dev wire$end nud permanent"
    done
    # For an incoming request rdma_cm checks that the route to its sender uses the interface that received it. It looks
    # up the route with that interface as output (oif), which "iif lo" does not match.
    cat <<END
rule add pref 100 lookup local
rule del pref 0
rule add pref 10 iif lo to 10.78.0.2 lookup 202
rule add pref 10 iif lo to 10.78.0.1 lookup 201
rule add pref 11 oif wire0 to 10.78.0.2 lookup 202
rule add pref 11 oif wire1 to 10.78.0.1 lookup 201
route add 10.78.0.2 dev wire0 src 10.78.0.1 table 202
route add 10.78.0.1 dev wire1 src 10.78.0.2 table 201
END
} >/run/ofi-ip
ip -batch /run/ofi-ip || fail "no interfaces"
for end in 0 1; do
    echo 1 >/proc/sys/net/ipv4/conf/wire$end/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/wire$end/rp_filter
done
cat <<END >/run/ofi-rdma
link add rxe0 type rxe netdev roce0
link add rxe1 type rxe netdev wire0
link add rxe2 type rxe netdev wire1
END
rdma -b /run/ofi-rdma || fail "no soft-RoCE devices"

# The command's raw output goes to the port that the host reads.
port=$(ls /dev/vport*p1 | head -n 1)
[ -n "$port" ] || fail "no port to the host"
exec 3>"$port"
{
    sh "$share/command.sh"
    echo $? >/run/ofi-status
} </dev/null 2>&1 | cat >&3
cp /run/ofi-status "$share/status"
sync
/tmp/ofi-vm/busybox poweroff -f
