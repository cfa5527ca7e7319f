#!/bin/sh
# Runs ranks of Open MPI in two network namespaces with different host names, joined by a veth pair.
# Usage: two_hosts.sh LIBRARIES SCRATCH PROGRAM, under unshare -Urnpu --fork --mount-proc.
set -eu
libraries=$1 scratch=$2 program=$3

ip link set lo up
unshare -nu sh -c 'hostname far; exec sleep 300' &
far=$!
while [ "$(readlink /proc/$far/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
hostname near
ip link add net0 type veth peer name net1
ip link set net1 netns $far name net0
# An endpoint takes the address of the default route's interface.
ip address add 10.98.0.1/24 dev net0
ip link set net0 up
ip route add default dev net0
nsenter -t $far -n sh -ec 'ip link set lo up; ip address add 10.98.0.2/24 dev net0; ip link set net0 up; ip route add default dev net0'

# Replaces ssh. Arguments: the host's name, then the command.
cat >"$scratch/agent" <<END
#!/bin/sh
shift
exec nsenter -t $far -n -u sh -c "\$*"
END
chmod +x "$scratch/agent"

export LD_LIBRARY_PATH="$libraries"
mpirun --allow-run-as-root --oversubscribe --host 10.98.0.1:2,10.98.0.2:2 -n 4 -x LD_LIBRARY_PATH \
	--mca plm_rsh_agent "$scratch/agent" --mca oob_tcp_if_include 10.98.0.0/24 \
	--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include udp --mca osc pt2pt "$program"
# The launcher alone sends a few dozen packets.
sent=$(ip -s link show dev net0 | sed -n '/TX:/{n;p}' | awk '{print $2}')
[ "$sent" -gt 500 ] || { echo "only $sent packets left for the other namespace" >&2; exit 1; }
