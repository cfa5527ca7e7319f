//! A dma-buf (`FI_MR_DMABUF`) with providers without a device is refused, with advice.

use std::os::fd::AsFd;

use ofi_testkit::prelude::*;

struct Provider(&'static str);

impl Kit for Provider {
    fn hints(&self) -> Hints {
        Hints::new().provider(self.0)
    }
}

#[test]
fn providers_without_a_device_refuse_a_dma_buf_by_name() {
    for name in ["shm", "udp", "tcp"] {
        let kit: &dyn Kit = &Provider(name);
        let pair = kit.pair();
        let file = std::fs::File::open("/dev/zero").unwrap();
        let piece = [Piece::new(std::ptr::without_provenance_mut(4096), 4096)];
        let dmabuf = Dmabuf { fd: file.as_fd(), offset: 0 };
        let attr = MrAttr::of_dmabuf(dmabuf, &piece, MrAccess::REMOTE_WRITE);
        let Err(error) = pair.b.domain.register(&attr) else { panic!("{name} registered a dma-buf") };
        assert_eq!(error.errno(), Errno::ENOSYS);
        let text = error.to_string();
        assert!(text.contains("FI_MR_DMABUF") && text.contains(name) && text.contains("efa"), "{text}");
    }
}
