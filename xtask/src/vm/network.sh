# Two RDMA devices, rxe0 (10.99.0.1) and rxe1 (10.99.0.2), on the two ends of a pair of network interfaces. Both addresses are this
# machine's own, so without the rules below the kernel would short-cut traffic between them, and loss and delay would not apply.
set -e
ip link set lo up
ip link add ve0 type veth peer name ve1
for i in 0 1; do
    for setting in accept_local=1 rp_filter=0 arp_ignore=1; do
        echo "${setting#*=}" >"/proc/sys/net/ipv4/conf/ve$i/${setting%=*}"
    done
    # No IPv6: its addresses come seconds late and would make more GIDs than anybody asked for.
    echo 1 >"/proc/sys/net/ipv6/conf/ve$i/disable_ipv6"
    ip address add "10.99.0.$((i + 1))/24" dev "ve$i"
    # Room for a payload of 4096 bytes and the headers of RoCE.
    ip link set "ve$i" mtu 4200 up
    ip rule add pref 10 oif "ve$i" lookup "10$i"
    ip route add "10.99.0.$((2 - i))/32" dev "ve$i" src "10.99.0.$((i + 1))" table "10$i"
done
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
ip rule add pref 100 lookup local
ip rule delete pref 0
for i in 0 1; do rdma link add "rxe$i" type rxe netdev "ve$i"; done
set +e
