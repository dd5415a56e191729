# Two RDMA devices, rxe0 and rxe1, on the two ends of a pair of network interfaces. Their addresses are of one version of IP, which `family` says: 10.99.0.1
# and 10.99.0.2, or fd99::1 and fd99::2. Both are this machine's own, so without the rules below the kernel would short-cut traffic between them, and loss
# and delay would not apply.
set -e
case $family in
4) net=10.99.0. own=24 one=32 flags= ;;
# An address of IPv6 is tried out for a second or more before it is used, if nobody forbids that.
6) net=fd99:: own=64 one=128 flags=nodad ;;
esac
ip link set lo up
ip link add ve0 type veth peer name ve1
for i in 0 1; do
    for setting in accept_local=1 rp_filter=0 arp_ignore=1; do
        echo "${setting#*=}" >"/proc/sys/net/ipv4/conf/ve$i/${setting%=*}"
    done
    # No addresses but those below: others come seconds late and would make more GIDs than anybody asked for.
    echo 1 >"/proc/sys/net/ipv6/conf/ve$i/addr_gen_mode"
    [ $family = 6 ] || echo 1 >"/proc/sys/net/ipv6/conf/ve$i/disable_ipv6"
    ip address add "$net$((i + 1))/$own" dev "ve$i" $flags
    # From there neighbours are asked for who is behind an address.
    [ $family = 4 ] || ip address add "fe80::$((i + 1))/64" dev "ve$i" $flags
    # Room for a payload of 4096 bytes and the headers of RoCE.
    ip link set "ve$i" mtu 4200 up
done
for i in 0 1; do
    ip -$family rule add pref 10 oif "ve$i" lookup "10$i"
    ip -$family route add "$net$((2 - i))/$one" dev "ve$i" src "$net$((i + 1))" table "10$i"
done
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
ip -$family rule add pref 100 lookup local
ip -$family rule delete pref 0
for i in 0 1; do rdma link add "rxe$i" type rxe netdev "ve$i"; done
set +e
