use ofi::*;
use std::time::{Duration, Instant};
#[test]
fn probe() {
    let hints = Hints::new().provider("shm");
    for wait_obj in [WaitObj::Yield, WaitObj::Unspec, WaitObj::Fd] {
        let b = Node::builder().hints(hints.clone()).wait_obj(wait_obj).open().unwrap();
        let a = Node::open(&hints).unwrap();
        let to_b = a.insert(&b.name().unwrap()).unwrap();
        b.recv(vec![0; 8]).unwrap();
        b.wait(Duration::from_millis(30)).unwrap();
        let s = Instant::now();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| b.wait(Duration::from_secs(20)).unwrap().unwrap());
            std::thread::sleep(Duration::from_millis(20));
            a.send(b"wake".to_vec(), to_b).unwrap();
            a.wait(Duration::from_secs(20)).unwrap().unwrap();
            eprintln!("{wait_obj} sent {:?}", s.elapsed());
            waiting.join().unwrap();
        });
        eprintln!("{wait_obj} woke {:?}", s.elapsed());
        let op = b.recv(vec![0; 8]).unwrap();
        b.cancel(op).unwrap();
        b.wait(Duration::from_secs(20)).unwrap().unwrap();
        eprintln!("{wait_obj} error {:?}", s.elapsed());
    }
}
