//! Agents, and memory of either kind.

use std::time::Duration;

use multirail::memory::cuda::Cuda;
use multirail::{Agent, Kind, Local};
use ofi::Hints;

pub const LONG: Duration = Duration::from_secs(30);

pub fn agent(name: &str, rails: &[&str]) -> Agent {
    let builder = Agent::builder(name).progress_thread(true).shared_memory(false);
    let builder =
        rails.iter().fold(builder, |builder, provider| builder.rail(Hints::new().provider(*provider)));
    builder.open().unwrap()
}

pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed * 31) as u8).collect()
}

pub type Fill = Box<dyn Fn(&[u8])>;
pub type Contents = Box<dyn Fn() -> Vec<u8>>;

/// Memory of either kind.
pub struct Memory {
    pub id: u64,
    pub whole: Local,
    pub fill: Fill,
    pub contents: Contents,
}

pub fn memory(agent: &Agent, kind: &str, len: usize) -> Memory {
    fn of<B: 'static>(region: multirail::Region<B>) -> Memory {
        let (id, whole, filled) = (region.id(), region.slice(..).unwrap(), region.clone());
        let contents = move || {
            let mut bytes = vec![0; region.len()];
            region.read_into(0, &mut bytes).unwrap();
            bytes
        };
        let fill = move |bytes: &[u8]| filled.write_from(0, bytes).unwrap();
        Memory { id, whole, fill: Box::new(fill), contents: Box::new(contents) }
    }
    match kind {
        "dram" => of(agent.register(vec![0_u8; len]).unwrap()),
        _ => {
            let ordinal = kind.strip_prefix("cuda:").map_or(0, |ordinal| ordinal.parse().unwrap());
            let region = agent.register_device(Cuda::open(ordinal).unwrap().alloc(len).unwrap()).unwrap();
            assert_eq!(region.kind(), Kind::Cuda(ordinal));
            of(region)
        }
    }
}
