use ofi::raw::*;
use std::sync::Arc;
use std::time::{Duration, Instant};
struct Side { ep: Arc<dyn Endpoint>, cq: Arc<dyn CompletionQueue>, av: Arc<dyn AddressVector>, _dom: Arc<dyn Domain> }
fn open(wait_obj: WaitObj) -> Side {
    let hints = Hints::new().caps(Caps::MSG).provider("shm").mr_mode(MrMode::empty());
    let infos = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&hints)).unwrap();
    let info = &infos[0];
    let dom = ofi::open_fabric(info).unwrap().open_domain(info, Serialization::LIBRARY).unwrap();
    let ep = dom.open_endpoint(info).unwrap();
    let cq = dom.open_cq(&CqAttr { wait_obj, ..CqAttr::default() }).unwrap();
    let av = dom.open_av(&AvAttr::default()).unwrap();
    ep.bind_cq(&cq, BindFlags::TRANSMIT | BindFlags::RECV).unwrap();
    ep.bind_av(&av).unwrap();
    ep.enable().unwrap();
    Side { ep, cq, av, _dom: dom }
}
#[test]
fn probe2() {
    for (zero, first) in [(false, true), (false, false), (true, true), (true, false)] {
        let (a, b) = (open(WaitObj::None), open(WaitObj::Unspec));
        let to_b = a.av.insert(&[b.ep.name().unwrap()])[0].clone().unwrap();
        let mut dst = [0u8; 8];
        let p = [Piece::new(dst.as_mut_ptr(), 8)];
        b.ep.receive(&ReceiveOp::new(unsafe { Lent::new(&p, &[]) }, Context(7))).unwrap();
        if first {
            let mut e = [CqTaggedEntry::EMPTY];
            let _ = b.cq.read_wait(&mut CqBuffer::new(if zero { &mut e[..0] } else { &mut e[..] }), Some(Duration::from_millis(30)));
        }
        let s = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut e = [CqTaggedEntry::EMPTY];
                let r = b.cq.read_wait(&mut CqBuffer::new(if zero { &mut e[..0] } else { &mut e[..] }), Some(Duration::from_secs(8)));
                eprintln!("zero {zero} first {first} {r:?} {:?}", s.elapsed());
            });
            std::thread::sleep(Duration::from_millis(20));
            let p = [Piece::new(b"wake".as_ptr().cast_mut(), 4)];
            a.ep.send(&SendOp::new(unsafe { Lent::new(&p, &[]) }, to_b, Context(9))).unwrap();
            let mut e = [CqTaggedEntry::EMPTY];
            while a.cq.read(&mut CqBuffer::new(&mut e)).is_err() {}
            eprintln!("sent {:?}", s.elapsed());
        });
    }
}
