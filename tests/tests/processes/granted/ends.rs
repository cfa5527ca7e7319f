//! Two connected endpoints: one of the info under test, and its peer.

use std::ops::Deref;
use std::sync::Arc;

use ofi_testkit::prelude::*;

/// The key, if the address vector has the keys.
pub const JOB: &[u8] = b"granted to a job";

/// An endpoint, and its program's state.
pub struct End {
    pub side: TestEndpoint,
    /// The shared context of its receives.
    pub receives: Option<TestEndpoint>,
    /// The number of [`JOB`] in its address vector.
    pub number_of_key: Option<FiAddr>,
}

impl Deref for End {
    type Target = TestEndpoint;

    fn deref(&self) -> &TestEndpoint {
        &self.side
    }
}

impl End {
    pub fn of(side: TestEndpoint) -> Self {
        Self { side, receives: None, number_of_key: None }
    }

    /// The key of endpoints of this info: their own, their vector's or their domain's.
    pub fn key_of(info: &Info) -> Vec<u8> {
        let (own, of_domain) = (&info.ep_attr.auth_key, &info.domain_attr);
        if of_domain.auth_key_size == AV_AUTH_KEY {
            return JOB.to_vec();
        }
        if own.is_empty() { of_domain.auth_key.clone() } else { own.clone() }
    }

    /// Length of its messages' prefix.
    pub fn prefix(&self) -> usize {
        if self.info.mode.contains(Mode::MSG_PREFIX) { self.info.ep_attr.msg_prefix_size } else { 0 }
    }

    /// The object on which its receives are posted.
    pub fn receiver(&self) -> &TestEndpoint {
        self.receives.as_ref().unwrap_or(&self.side)
    }

    /// Posts as soon as there is room.
    #[track_caller]
    pub fn post(&self, peer: &End, what: &str, mut post: impl FnMut() -> Result<()>) {
        wait::drive(&[&self.side, &peer.side], what, || match post() {
            Ok(()) => Some(()),
            Err(error) if error.is_again() => None,
            Err(error) => panic!("{what}: {error}"),
        });
    }

    /// The event of the operation with this context.
    #[track_caller]
    pub fn ended(&self, peer: &End, context: usize, what: &str) -> Event {
        wait::drive(&[&self.side, &peer.side], what, || self.next_of(context))
    }

    fn insert_peer(&self, peer: &End) -> FiAddr {
        let how = Insertion { auth_key: self.number_of_key, ..Insertion::default() };
        let name = peer.name();
        let inserted = self.av.insert_with(Addresses::Given(std::slice::from_ref(&name)), &how);
        inserted.expect("an insertion").remove(0).expect("the address of a peer")
    }

    /// Registers memory with these rights, under a key of its own if the program chooses keys. The caller keeps the
    /// memory for longer than the registration.
    pub fn register(&self, memory: &Memory, rights: MrAccess) -> Arc<dyn MemoryRegion> {
        thread_local!(static KEY: std::cell::Cell<u64> = const { std::cell::Cell::new(1) });
        let pieces = [memory.slice(..).piece()];
        // SAFETY: the callers drop the registration before the memory, which tests look at only through raw pointers.
        let mut attr = unsafe { MrAttr::new(&pieces, rights) };
        let key = Self::key_of(&self.info);
        if key != self.info.domain_attr.auth_key {
            attr.auth_key = &key;
        }
        if !self.info.domain_attr.mr_mode.expanded().contains(MrMode::PROV_KEY) {
            attr.requested_key = KEY.replace(KEY.get() % 250 + 1);
        }
        self.domain.register(&attr).expect("a registration")
    }
}

/// Two ends, of which `a` is of the info under test.
pub struct Two {
    pub a: End,
    pub b: End,
    /// `b`'s number at `a`.
    pub to_b: FiAddr,
    /// `a`'s number at `b`.
    pub to_a: FiAddr,
}

impl Two {
    pub fn of(a: End, b: End) -> Self {
        let (to_b, to_a) = (a.insert_peer(&b), b.insert_peer(&a));
        Self { a, b, to_b, to_a }
    }

    /// One direction: from the end under test, or to it.
    pub fn outward(&self) -> Path<'_> {
        Path { from: &self.a, to: self.to_b, at: &self.b, source: self.to_a }
    }

    pub fn inward(&self) -> Path<'_> {
        Path { from: &self.b, to: self.to_a, at: &self.a, source: self.to_b }
    }
}

/// From one end to the other.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    pub from: &'a End,
    /// The number of `at` at `from`.
    pub to: FiAddr,
    pub at: &'a End,
    /// The number of `from` at `at`.
    pub source: FiAddr,
}
