//! The eight machines on which NIXL tests its grouping (bus numbers, links and rates as AWS builds them, in our own
//! descriptions): the same NICs for each accelerator, and the same count and spread of rails for memory.

mod fake;
#[cfg(feature = "hwloc")]
mod hwloc;
mod near;

use std::collections::BTreeSet;

use fake::FakeSys;
use multirail::Topology;
use multirail::topology::{DramLimit, NicKind, Rate, Vendor};

struct Machine {
    topology: Topology,
    rdma: Vec<usize>,
}

impl Machine {
    fn new(description: &str) -> Self {
        let sys = FakeSys::new(description);
        let topology = Topology::read(sys.path()).unwrap();
        let rdma = topology.nics_where(|nic| nic.kind == NicKind::Rdma);
        assert_eq!(topology.usual_nics(), rdma);
        Self { topology, rdma }
    }

    /// The NICs of each accelerator, by the PCI buses of both.
    fn served(&self) -> Vec<(u8, Vec<u8>)> {
        let grouping = self.topology.group(&self.rdma);
        let bus = |&nic: &usize| self.topology.nics()[nic].pci.unwrap().bus;
        let accelerators = self.topology.accelerators().iter().zip(&grouping.nics);
        accelerators.map(|(gpu, nics)| (gpu.pci.bus, nics.iter().map(bus).collect())).collect()
    }

    fn rails(&self, numa: u32, limit: DramLimit, turn: usize) -> Vec<usize> {
        self.topology.dram_rails(&self.rdma, Some(numa), limit, turn)
    }
}

macro_rules! machine {
    ($name:literal) => {
        Machine::new(include_str!(concat!("machines/", $name, ".txt")))
    };
}

#[test]
fn c5n_has_one_nic_and_nothing_to_group() {
    let c5n = machine!("c5n");
    assert_eq!(c5n.rdma.len(), 1);
    assert!(c5n.served().is_empty());
    assert_eq!(c5n.topology.group(&c5n.rdma).spare, c5n.rdma);
    let nic = &c5n.topology.nics()[c5n.rdma[0]];
    assert_eq!((nic.name.as_str(), nic.numa, nic.speed, nic.link), ("rdmap0s31", None, None, None));
    assert_eq!(c5n.rails(0, DramLimit::Measured, 0), c5n.rdma);
}

#[test]
fn the_one_nic_of_p3dn_and_g5_serves_all_eight_gpus() {
    for machine in [machine!("p3dn"), machine!("g5")] {
        let [nic] = machine.rdma[..] else { panic!("one NIC") };
        assert_eq!(machine.topology.group(&machine.rdma).nics, vec![vec![nic]; 8]);
        assert_eq!(machine.topology.nics()[nic].numa, None);
        assert_eq!(machine.topology.numa_capacity(&machine.rdma).len(), 0);
        for limit in [DramLimit::Measured, DramLimit::AtMost(Rate::gbps(50))] {
            assert_eq!(machine.rails(1, limit, 3), [nic]);
        }
    }
}

#[test]
fn gpus_of_g6_without_a_nic_on_their_side_use_the_one_on_the_other() {
    let g6 = machine!("g6");
    assert_eq!(g6.served().len(), 8);
    assert!(g6.served().iter().all(|(_, nics)| *nics == [0x96]), "{:?}", g6.served());
    assert_eq!(
        g6.topology.numa_capacity(&g6.rdma).into_iter().collect::<Vec<_>>(),
        [(0, Rate(252_061_538_461))]
    );
    assert_eq!(g6.rails(1, DramLimit::Measured, 0), g6.rdma);
}

#[test]
fn two_gpus_of_p4d_share_the_nic_of_their_root_complex() {
    let p4d = machine!("p4d");
    let shares: Vec<_> =
        [0x10, 0x20, 0x90, 0xA0].into_iter().flat_map(|bus| vec![(bus, vec![bus]); 2]).collect();
    assert_eq!(p4d.served(), shares);
    // No switch is visible, so the capacity of a node is unknown: all four.
    assert_eq!(p4d.rails(0, DramLimit::Measured, 0), p4d.rdma);
    assert_eq!(p4d.topology.nics()[p4d.rdma[3]].numa, Some(1));
}

#[test]
fn each_gpu_of_p5_has_the_four_nics_of_its_switch() {
    let p5 = machine!("p5");
    assert_eq!((p5.rdma.len(), p5.served().len()), (32, 8));
    for (nth, (gpu, nics)) in p5.served().into_iter().enumerate() {
        let switch = 0x44 + 0x11 * nth as u8;
        assert_eq!(nics.len(), 4);
        assert!(
            nics.iter().chain([&gpu]).all(|bus| (switch..switch + 0x11).contains(bus)),
            "{gpu:x}: {nics:x?}"
        );
    }
    // Four uplinks of a node carry four NICs, one of each switch.
    assert_spread(&p5, 32, Rate::gbps(100), 4, 1);
}

#[test]
fn the_four_nics_of_a_switch_of_p5en_are_dealt_to_its_two_gpus() {
    let p5en = machine!("p5en");
    assert_eq!(
        p5en.served(),
        [
            (0x59, vec![0x55, 0x56]),
            (0x5A, vec![0x57, 0x58]),
            (0x72, vec![0x6E, 0x6F]),
            (0x73, vec![0x70, 0x71]),
            (0x8B, vec![0x87, 0x88]),
            (0x8C, vec![0x89, 0x8A]),
            (0xA4, vec![0xA0, 0xA1]),
            (0xA5, vec![0xA2, 0xA3]),
        ]
    );
    assert_spread(&p5en, 16, Rate::gbps(200), 4, 2);
}

#[test]
fn each_gpu_of_p6_b200_has_one_of_the_two_nics_of_its_switch() {
    let p6 = machine!("p6-b200");
    let pairs =
        [(0x51, 0x4F), (0x52, 0x50), (0x62, 0x60), (0x63, 0x61), (0x75, 0x71), (0x76, 0x72), (0x86, 0x84)];
    let served: Vec<_> = pairs.into_iter().chain([(0x87, 0x85)]).map(|(gpu, nic)| (gpu, vec![nic])).collect();
    assert_eq!(p6.served(), served);
    assert_spread(&p6, 8, Rate::gbps(400), 2, 1);
}

/// Checks that a node's own memory gets `rails` rails, `each` of a switch; beyond that the rest of the node, evenly;
/// then the other node.
fn assert_spread(machine: &Machine, nics: usize, speed: Rate, rails: usize, each: usize) {
    let topology = &machine.topology;
    let numa = |&nic: &usize| topology.nics()[nic].numa.unwrap();
    let per_switch = |chosen: &[usize]| {
        let mut counts = std::collections::BTreeMap::new();
        for &nic in chosen {
            *counts.entry(topology.uplink(&topology.nics()[nic]).unwrap().0).or_insert(0) += 1;
        }
        counts.into_values().collect::<Vec<usize>>()
    };
    for node in [0, 1] {
        for turn in 0..5 {
            let chosen = machine.rails(node, DramLimit::Measured, turn);
            assert_eq!(chosen.len(), rails);
            assert!(chosen.iter().all(|nic| numa(nic) == node));
            assert_eq!(per_switch(&chosen), vec![each; rails / each]);
            for count in 1..=nics + 3 {
                let chosen = machine.rails(node, DramLimit::AtMost(Rate(speed.0 * count as u64)), turn);
                assert_eq!(chosen.len(), count.min(nics));
                assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), chosen.len(), "none twice");
                let near = chosen.iter().filter(|&nic| numa(nic) == node).count();
                assert_eq!(near, count.min(nics / 2), "the node's own come first");
                let own: Vec<usize> = chosen.into_iter().filter(|nic| numa(nic) == node).collect();
                let counts = per_switch(&own);
                let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                assert!(most - least <= each, "{count}: {counts:?}");
            }
            let less = DramLimit::AtMost(Rate(speed.0 / 2));
            assert_eq!(machine.rails(node, less, turn).len(), 1, "never none");
        }
        let first = |turn| machine.rails(node, DramLimit::AtMost(speed), turn);
        assert_ne!(first(0), first(1), "successive buffers use different rails");
    }
}

#[test]
fn neuron_devices_are_grouped_like_gpus_and_other_devices_of_the_vendor_are_none() {
    let machine = Machine::new(
        "node 0\n\
         host 0000:00 node 0\n\
         \x20 gpu 0000:00:09.0 1d0f:7000 16x16\n\
         \x20 bridge 0000:00:01.0 16x16\n\
         \x20   gpu 0000:10:00.0 1d0f:7364 16x16\n\
         \x20   rdma 0000:11:00.0 1d0f:efa1 16x16 rdmap17s0 100\n\
         \x20 bridge 0000:00:02.0 16x16\n\
         \x20   gpu 0000:20:00.0 1d0f:7164 16x16\n\
         \x20   rdma 0000:21:00.0 1d0f:efa1 16x16 rdmap33s0 100\n",
    );
    assert!(machine.topology.accelerators().iter().all(|found| found.vendor == Vendor::Neuron));
    assert_eq!(machine.served(), [(0x10, vec![0x11]), (0x20, vec![0x21])]);
}

#[test]
fn strange_files_are_skipped_and_a_missing_directory_is_an_error() {
    let sys = FakeSys::new("node 0\nhost 0000:00 node 0\n  gpu 0000:00:01.0 10de:2330 16x16\n");
    let device = sys.path().join("bus/pci/devices");
    std::os::unix::fs::symlink("/nonexistent", device.join("0000:00:02.0")).unwrap();
    std::fs::write(device.join("no address"), "").unwrap();
    std::fs::create_dir_all(sys.path().join("class/net/veth0")).unwrap();
    std::fs::write(sys.path().join("class/net/veth0/speed"), "99999999999999999999").unwrap();
    std::fs::write(sys.path().join("devices/pci0000:00/0000:00:01.0/numa_node"), [0xFF; 9000]).unwrap();
    let topology = Topology::read(sys.path()).unwrap();
    assert_eq!(topology.accelerators().len(), 1);
    assert_eq!(topology.accelerators()[0].numa, None);
    assert_eq!((topology.nics()[0].name.as_str(), topology.nics()[0].speed), ("veth0", None));
    assert!(Topology::read(&sys.path().join("nowhere")).is_err());
}

#[test]
fn infos_join_their_nics_and_the_rest_have_a_place_too() {
    let p5en = machine!("p5en");
    let mut topology = p5en.topology.clone();
    let mut info = ofi::Info::default();
    info.fabric_attr.prov_name = "udp".into();
    info.domain_attr.name = "enp71s0".into();
    let mut other = info.clone();
    (other.fabric_attr.prov_name, other.domain_attr.name) = ("shm".into(), "shm".into());
    topology.add_infos(&[info.clone(), info, other]);
    let nics: Vec<_> = topology.nics().iter().filter(|nic| !nic.providers.is_empty()).collect();
    assert_eq!(nics.len(), 2);
    assert_eq!((nics[0].name.as_str(), nics[0].providers.len(), nics[0].numa), ("enp71s0", 1, Some(0)));
    assert_eq!((nics[1].name.as_str(), nics[1].kind, nics[1].parent), ("shm", NicKind::Provider, 0));
}

#[test]
fn the_tree_and_the_picture_name_every_device() {
    let p5en = machine!("p5en");
    let grouping = p5en.topology.group(&p5en.rdma);
    let (text, svg) = (p5en.topology.to_text(&grouping), p5en.topology.to_svg(&grouping));
    for nic in p5en.topology.nics() {
        assert!(text.contains(&nic.name) && svg.contains(&nic.name), "{}", nic.name);
    }
    assert!(text.contains("GPU 1 0000:5a:00.0, 32 GT/s x16 -> rdmap87s0, rdmap88s0"), "{text}");
    assert_eq!(svg.matches("<rect").count(), svg.matches("/>").count());
    let json = serde_json::to_value(&p5en.topology).unwrap();
    assert_eq!(json["accelerators"][0]["pci"], "0000:59:00.0");
}
