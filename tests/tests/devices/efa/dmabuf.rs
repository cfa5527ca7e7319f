//! Memory behind a descriptor (`FI_MR_DMABUF`), as a GPU's driver exports it. Here it is a file in memory that only the
//! simulated device maps, not this process.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, FromRawFd};
use std::os::unix::fs::FileExt;

use ofi_testkit::prelude::*;

use super::EfaPair;
use super::native::{alone, cost, on_own_device};

const RIGHTS: MrAccess = MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE);
const LEN: usize = 100_000;
/// Offset of the first registered byte in the file, and its address, where nothing is mapped.
const OFFSET: u64 = 4096 + 64;
const BASE: usize = 0x10_0000;

/// A file in memory of `OFFSET + LEN` bytes.
fn file() -> File {
    // SAFETY: a name that ends.
    let fd = unsafe { libc::memfd_create(c"dmabuf".as_ptr(), 0) };
    // SAFETY: new, and nobody else's.
    let mut file = unsafe { File::from_raw_fd(fd) };
    file.write_all(&vec![1; OFFSET as usize + LEN]).unwrap();
    file
}

#[test]
fn devices_access_a_dma_buf_and_its_owner_does_not() {
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let pair = kit.pair_with(|opening| opening.hints(on_own_device));
    pair.warm_up();
    let file = file();
    let piece = [Piece::new(std::ptr::without_provenance_mut(BASE + OFFSET as usize), LEN)];
    let attr = MrAttr::of_dmabuf(Dmabuf { fd: file.as_fd(), offset: OFFSET }, &piece, RIGHTS);
    let region = pair.b.domain.register(&attr).unwrap();
    assert_eq!((region.base(), region.len()), (BASE as u64 + OFFSET, LEN));
    for len in [1, 64, 8761, LEN] {
        let (from, back) = (Memory::patterned(len, 7), Memory::new(len));
        let there = [remote_at(&region, LEN - len, len)];
        let cost = cost(&pair.a, || {
            pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&there));
            pair.done(&pair.a);
            pair.post(|| pair.a.out(pair.to_b, &back).context(3).read(&there));
            pair.done(&pair.a);
        });
        assert_eq!(cost, [1, 1, 0], "{len} bytes: by the device alone");
        back.check(len, 7);
        let mut found = vec![0; len];
        file.read_exact_at(&mut found, OFFSET + (LEN - len) as u64).unwrap();
        assert_eq!(found, from.bytes());
    }
    // A refused access is sent to the owner, which would fault on this memory, but does not know the key.
    let from = Memory::new(64);
    let beyond = remote_at(&region, LEN - 63, 64);
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[beyond]));
    assert_eq!(pair.failed(&pair.a).err, Errno::EKEYREJECTED);
    pair.post(|| {
        pair.a.out(pair.to_b, &from).context(2).msg(OpFlags::FENCE).write(&[remote_at(&region, 0, 64)])
    });
    assert_eq!(pair.failed(&pair.a).err, Errno::EKEYREJECTED, "an access that only the owner could execute");
    region.close().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).write(&[remote_at(&region, 0, 64)]));
    assert_eq!(pair.failed(&pair.a).err, Errno::EKEYREJECTED, "closed");
}

#[test]
fn a_dma_buf_that_is_too_short_is_refused() {
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let pair = kit.pair_with(|opening| opening.hints(on_own_device));
    let file = file();
    let piece = [Piece::new(std::ptr::without_provenance_mut(BASE), LEN + 1)];
    let attr = MrAttr::of_dmabuf(Dmabuf { fd: file.as_fd(), offset: OFFSET }, &piece, RIGHTS);
    assert_eq!(pair.b.domain.register(&attr).err().map(|error| error.errno()), Some(Errno::EINVAL));
}
