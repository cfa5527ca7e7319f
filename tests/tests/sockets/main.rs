//! Providers over sockets: `udp`, `tcp`, and rails between hosts.

mod rails_etcd;
mod rails_links;
mod tcp;
mod tcp_batches;
mod tcp_bulk;
mod tcp_bulk_lost;
mod tcp_faults;
mod tcp_leaving;
mod tcp_raw;
mod tcp_sealed;
mod tcp_shares;
mod tcp_stalled;
mod tcp_unexpected;
mod udp;
mod udp_addresses;
mod udp_ahead;
mod udp_exit;
mod udp_hostile;
mod udp_network;
mod udp_placed;
mod udp_reads;
mod udp_refused;
mod udp_six;
mod udp_strangers;
mod udp_watched;

use ofi_tests::mesh::member;
use ofi_tests::udp::echo;
use rails_links::{far_end, near_end as rails_near_end};
use tcp_faults::echo as tcp_echo;
use udp::{late, sleeper};
use udp_addresses::kinds::{listener, reflector};
use udp_addresses::near_end as addresses_near_end;
use udp_network::near_end;

ofi_testkit::roles!(
    addresses_near_end,
    echo,
    far_end,
    late,
    listener,
    member,
    near_end,
    rails_near_end,
    reflector,
    sleeper,
    tcp_echo,
);
