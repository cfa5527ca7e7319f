//! The rails of regions on recorded machines.

use super::*;
use crate::fake_sys::FakeSys;

/// An agent on a machine of this description, with a rail on each RDMA device.
fn machine(description: &str, limit: DramLimit) -> Domains {
    machine_with(description, limit, false)
}

/// The same, with a rail of all addresses behind those if `has_other` is set.
fn machine_with(description: &str, limit: DramLimit, has_other: bool) -> Domains {
    let topology = Topology::read(FakeSys::new(description).path()).unwrap();
    let names: Vec<String> =
        topology.usual_nics().iter().map(|&nic| topology.nics()[nic].name.clone()).collect();
    let info = crate::rail::infos(&ofi::Hints::new().provider("shm")).unwrap().remove(0);
    let domain = ofi::open_fabric(&info).unwrap().open_domain(&info).unwrap();
    let named = |name: String| {
        let mut info = info.clone();
        info.domain_attr.name = name;
        info
    };
    let other = has_other.then(Info::default);
    let infos: Vec<Info> = names.into_iter().map(named).chain(other).collect();
    Domains::new(infos.iter().map(|info| (info, &domain)), Some(topology), limit)
}

macro_rules! machine {
    ($name:literal) => {
        machine(include_str!(concat!("../../tests/topology/machines/", $name, ".txt")), DramLimit::Measured)
    };
}

fn gpus(domains: &Domains) -> Vec<RailSet> {
    let accelerators = domains.topology.as_ref().unwrap().accelerators();
    accelerators.iter().map(|gpu| domains.near(Some(Place::Accelerator(gpu.pci)))).collect()
}

#[test]
fn a_gpu_of_p5_has_its_four_rails_and_a_nodes_memory_four_of_its_own() {
    let p5 = machine!("p5");
    assert_eq!(gpus(&p5), (0..8).map(|gpu| 0b1111 << (4 * gpu)).collect::<Vec<_>>());
    for node in [0, 1] {
        let near = p5.near(Some(Place::Numa(node)));
        assert_eq!((near.count_ones(), near & 0xFFFF << (16 * node)), (4, near), "node {node}");
    }
    assert_eq!(p5.near(None).count_ones(), 32, "memory that is nowhere yet");
    assert_eq!(p5.near(Some(Place::Accelerator("0000:00:01.0".parse().unwrap()))).count_ones(), 32);
}

#[test]
fn where_one_nic_is_near_the_next_is_used_too() {
    // Two GPUs share a NIC, and each node has two.
    assert_eq!(gpus(&machine!("p4d")), [0b11, 0b11, 0b11, 0b11, 0b1100, 0b1100, 0b1100, 0b1100]);
    assert_eq!(gpus(&machine!("p5en")), (0..8).map(|gpu| 0b11 << (2 * gpu)).collect::<Vec<_>>());
    let dgx = machine!("dgx");
    for (gpu, near) in gpus(&dgx).into_iter().enumerate() {
        assert_eq!(near.count_ones(), 2, "GPU {gpu}");
    }
}

#[test]
fn a_limit_decides_how_many_rails_suffice() {
    let description = include_str!("../../tests/topology/machines/p5.txt");
    let near = |gbps| {
        let limit = DramLimit::AtMost(crate::topology::Rate::gbps(gbps));
        machine(description, limit).near(Some(Place::Numa(0))).count_ones()
    };
    assert_eq!((near(100), near(800), near(5000)), (2, 8, 32));
}

#[test]
fn two_rails_and_rails_without_a_nic_serve_all_memory() {
    let pair = machine!("connectx");
    assert!(!pair.chooses());
    assert_eq!(pair.near(Some(Place::Numa(0))), 0b11);
    let laptop = machine!("laptop");
    assert!(gpus(&laptop).into_iter().all(|near| near == laptop.near(None)));
    let description = include_str!("../../tests/topology/machines/p5.txt");
    let p5 = machine_with(description, DramLimit::Measured, true);
    assert_eq!(gpus(&p5)[1], 1 << 32 | 0b1111_0000);
}
