//! tmp
use ofi::raw::*;
use std::sync::Arc;

struct Side { ep: Arc<dyn Endpoint>, cq: Arc<dyn CompletionQueue>, av: Arc<dyn AddressVector>, dom: Arc<dyn Domain> }
fn open() -> Side {
    let hints = Hints::new().caps(Caps::MSG | Caps::TAGGED | Caps::RMA| Caps::SOURCE).provider("shm").mr_mode(MrMode::empty());
    let infos = ofi::getinfo(Version::API, None, None, GetinfoFlags::empty(), Some(&hints)).unwrap();
    let info = &infos[0];
    let fabric = ofi::open_fabric(info).unwrap();
    let dom = fabric.open_domain(info, Serialization::LIBRARY).unwrap();
    let ep = dom.open_endpoint(info).unwrap();
    let cq = dom.open_cq(&CqAttr::default()).unwrap();
    let av = dom.open_av(&AvAttr::default()).unwrap();
    ep.bind_cq(&cq, BindFlags::TRANSMIT | BindFlags::RECV).unwrap();
    ep.bind_av(&av).unwrap();
    ep.enable().unwrap();
    Side { ep, cq, av, dom }
}
fn read(cq: &Arc<dyn CompletionQueue>) -> Option<CqTaggedEntry> {
    let mut e = [CqTaggedEntry::EMPTY];
    match cq.read(&mut CqBuffer::new(&mut e)) { Ok(1) => Some(e[0]), Ok(_) => None, Err(e) if e.is_again() => None, Err(er) => panic!("{er} {:?}", cq.read_error()) }
}
#[test]
fn ping() {
    let (a, b) = (open(), open());
    let to_b = a.av.insert(&[b.ep.name().unwrap()])[0].clone().unwrap();
    let to_a = b.av.insert(&[a.ep.name().unwrap()])[0].clone().unwrap();
    for len in [0usize, 1, 64, 4096, 8192, 100_000, 3_000_000] {
        let mut src: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let mut dst = vec![0u8; len];
        let p = [Piece::new(dst.as_mut_ptr(), len)];
        b.ep.receive(&ReceiveOp::new(unsafe { Lent::new(&p, &[]) }, Context(7))).unwrap();
        let p = [Piece::new(src.as_mut_ptr(), len)];
        a.ep.send(&SendOp::new(unsafe { Lent::new(&p, &[]) }, to_b, Context(9))).unwrap();
        let (mut s, mut r) = (None, None);
        let t = std::time::Instant::now();
        while s.is_none() || r.is_none() {
            s = s.or(read(&a.cq)); r = r.or(read(&b.cq));
            assert!(t.elapsed().as_secs() < 5, "{len} {s:?} {r:?} {:?}", a.ep.statistics());
        }
        assert_eq!(r.unwrap().len, len);
        assert_eq!(src, dst);
    }
    let _ = to_a;
    let mut mem = vec![0u8; 1 << 20];
    let p = [Piece::new(mem.as_mut_ptr(), mem.len())];
    let mr = b.dom.register(&unsafe { MrAttr::new(&p, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE) }).unwrap();
    for len in [8usize, 5000, 1 << 20] {
        let mut src: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
        let p = [Piece::new(src.as_mut_ptr(), len)];
        let remote = [RemotePiece { addr: 0, len, key: mr.key() }];
        a.ep.write(&RmaOp { buf: unsafe { Lent::new(&p, &[]) }, remote: &remote, peer: to_b, context: Context(1), data: 0, flags: OpFlags::empty(), call: Call::Plain }).unwrap();
        while read(&a.cq).is_none() { read(&b.cq); }
        assert_eq!(&mem[..len], &src[..]);
        let mut back = vec![0u8; len];
        let p = [Piece::new(back.as_mut_ptr(), len)];
        a.ep.read(&RmaOp { buf: unsafe { Lent::new(&p, &[]) }, remote: &remote, peer: to_b, context: Context(1), data: 0, flags: OpFlags::empty(), call: Call::Plain }).unwrap();
        while read(&a.cq).is_none() { read(&b.cq); }
        assert_eq!(back, src);
    }
}
