use ofi::*;
use std::time::Duration;
use std::sync::Arc;
#[test]
fn probe() {
    let hints = Hints::new().provider("shm");
    let bytes: Arc<[u8]> = Arc::from(vec![1u8; 300_000]);
    std::thread::scope(|scope| for _ in 0..4 { scope.spawn(|| for round in 0..300 {
        let b = Node::open(&hints).unwrap();
        let a = Node::open(&hints).unwrap();
        let to_b = a.insert(&b.name().unwrap()).unwrap();
        for _ in 0..5 { a.send(Arc::clone(&bytes), to_b).unwrap(); }
        b.recv(vec![0; 300_000]).unwrap();
        for _ in 0..round % 4 { b.poll().unwrap(); }
        let bs = b.statistics();
        drop(b);
        let mut ended = vec![];
        while ended.len() < 5 {
            let Some(c) = a.wait(Duration::from_secs(7)).unwrap() else {
                eprintln!("STUCK round {round} ended {ended:?} in flight {}", a.in_flight());
                for s in a.statistics() { if s.value != 0 { eprint!(" {}={}", s.name, s.value); } }
                eprint!("\n  b:");
                for s in bs { if s.value != 0 { eprint!(" {}={}", s.name, s.value); } }
                eprintln!();
                break;
            };
            ended.push(c.result.map_err(|e| e.errno()));
        }
    }); });
}
