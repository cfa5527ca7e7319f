//! The NICs for memory at each place of a machine, with the reason.

use multirail::Topology;
use multirail::topology::{Because, DramLimit, Near, Place, Rate};

use super::fake::FakeSys;

struct Machine(Topology, Vec<usize>);

impl Machine {
    fn new(description: &str) -> Self {
        let topology = Topology::read(FakeSys::new(description).path()).unwrap();
        let nics = topology.usual_nics();
        Self(topology, nics)
    }

    fn near(&self, place: Place, limit: DramLimit) -> (Vec<&str>, Because) {
        let Near { nics, because } = self.0.near(&self.1, place, limit, 0);
        (nics.into_iter().map(|nic| self.0.nics()[nic].name.as_str()).collect(), because)
    }

    fn gpu(&self, nth: usize) -> (Vec<&str>, Because) {
        self.near(Place::Accelerator(self.0.accelerators()[nth].pci), DramLimit::Measured)
    }

    fn node(&self, node: u32) -> (Vec<&str>, Because) {
        self.near(Place::Numa(node), DramLimit::Measured)
    }
}

macro_rules! machine {
    ($name:literal) => {
        Machine::new(include_str!(concat!("machines/", $name, ".txt")))
    };
}

#[test]
fn each_gpu_of_p5_takes_its_four_nics_and_its_host_memory_four_of_sixteen() {
    let p5 = machine!("p5");
    let mut seen = Vec::new();
    for gpu in 0..8 {
        let (names, because) = p5.gpu(gpu);
        assert_eq!((names.len(), because), (4, Because::Nearest));
        seen.extend(names);
    }
    assert_eq!(p5.gpu(0).0, ["rdmap79s0", "rdmap80s0", "rdmap81s0", "rdmap82s0"]);
    seen.dedup();
    assert_eq!(seen.len(), 32, "no NIC serves two of them");
    let (names, because) = p5.node(1);
    assert_eq!((names.len(), because), (4, Because::Bandwidth { suffice: 4, own: 4 }));
    let (names, because) = p5.near(Place::Numa(1), DramLimit::AtMost(Rate::gbps(2000)));
    assert_eq!((names.len(), because), (20, Because::Bandwidth { suffice: 20, own: 16 }));
}

#[test]
fn gpus_share_what_is_nearest_to_several() {
    let p4d = machine!("p4d");
    assert_eq!(p4d.gpu(0), (vec!["rdmap16s27"], Because::Shared(2)));
    assert_eq!(p4d.gpu(7), (vec!["rdmap160s27"], Because::Shared(2)));
    // No switch is visible: nobody knows what a node carries.
    assert_eq!(p4d.node(0).1, Because::LinksUnknown);
    assert_eq!(p4d.node(0).0.len(), 4);
    let p5en = machine!("p5en");
    assert_eq!(p5en.gpu(0), (vec!["rdmap85s0", "rdmap86s0"], Because::Nearest));
    assert_eq!(machine!("g6").gpu(7), (vec!["rdmap150s0"], Because::OnlyNic));
    assert_eq!(machine!("g6").node(1), (vec!["rdmap150s0"], Because::OnlyNic));
}

#[test]
fn a_dgx_has_an_adapter_for_each_gpu_and_others_apart() {
    let dgx = machine!("dgx");
    let of_gpu = ["mlx5_0", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_7", "mlx5_8", "mlx5_9"];
    for (gpu, wanted) in of_gpu.into_iter().enumerate() {
        assert_eq!(dgx.gpu(gpu), (vec![wanted], Because::Nearest), "GPU {gpu}");
    }
    let (names, because) = dgx.node(0);
    let Because::Bandwidth { suffice, own } = because else { panic!("{because:?}") };
    assert_eq!((names.len(), own), (suffice, suffice.min(5)));
}

#[test]
fn a_pair_of_adapters_serves_the_memory_of_their_nodes_and_a_gpu_takes_that_of_its_node() {
    let pair = machine!("connectx");
    assert_eq!(pair.node(0), (vec!["mlx5_0"], Because::Bandwidth { suffice: 1, own: 1 }));
    assert_eq!(pair.node(1), (vec!["mlx5_1"], Because::Bandwidth { suffice: 1, own: 1 }));
    assert_eq!(pair.gpu(0), (vec!["mlx5_1"], Because::Nearest));
}

#[test]
fn where_the_system_tells_little_all_are_used() {
    let laptop = machine!("laptop");
    assert_eq!(laptop.node(0).1, Because::LinksUnknown);
    assert_eq!(laptop.node(0).0.len(), 2);
    assert_eq!(laptop.gpu(0).1, Because::Nearest, "its one GPU has all");
    assert_eq!(laptop.gpu(0).0.len(), 2);
    // A virtual machine: devices side by side on one bus, without links and NUMA nodes.
    let vm = Machine::new(
        "node 0\n\
         host 0000:00 node none\n\
         \x20 rdma 0000:00:05.0 15b3:101e - mlx5_0 100\n\
         \x20 rdma 0000:00:06.0 15b3:101e - mlx5_1 100\n\
         \x20 gpu 0000:00:07.0 10de:20b0 -\n\
         \x20 gpu 0000:00:08.0 10de:20b0 -\n",
    );
    assert_eq!(vm.node(0), (vec!["mlx5_0", "mlx5_1"], Because::LinksUnknown));
    assert_eq!((vm.gpu(0).0, vm.gpu(1).0), (vec!["mlx5_0"], vec!["mlx5_1"]), "dealt out evenly");
    let elsewhere = "0000:99:00.0".parse().unwrap();
    let (names, because) = vm.near(Place::Accelerator(elsewhere), DramLimit::Measured);
    assert_eq!((names.len(), because), (2, Because::PlaceUnknown));
    // All NICs on one node: the other node's memory takes those.
    let lopsided = Machine::new(
        "node 0\n\
         host 0000:10 node 0\n\
         \x20 bridge 0000:10:00.0 16x16\n\
         \x20   bridge 0000:11:00.0 16x16\n\
         \x20     rdma 0000:12:00.0 15b3:101b 16x16 mlx5_0 200\n\
         \x20   bridge 0000:11:01.0 16x16\n\
         \x20     rdma 0000:13:00.0 15b3:101b 16x16 mlx5_1 200\n\
         node 1\n",
    );
    assert_eq!(lopsided.node(1), (vec!["mlx5_0"], Because::Bandwidth { suffice: 1, own: 0 }));
    assert_eq!(lopsided.near(Place::Numa(1), DramLimit::AtMost(Rate::gbps(400))).0.len(), 2);
}
